"""Bitwise verification: one reference, several candidates, the first difference named."""

from fedbench.verification.arguments import Candidate
from fedbench.verification.compare import Difference, first_difference
from fedbench.verification.harness import Verification, verify
from fedbench.verification.trace import Trace, read_trace

__all__ = [
    "Candidate",
    "Difference",
    "Trace",
    "Verification",
    "first_difference",
    "read_trace",
    "verify",
]
