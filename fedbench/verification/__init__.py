"""Bitwise verification: one reference, several candidates, the first difference named."""

from fedbench.verification.compare import Difference, first_difference
from fedbench.verification.verify import Candidate, Verification, verify

__all__ = ["Candidate", "Difference", "Verification", "first_difference", "verify"]
