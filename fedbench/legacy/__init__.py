"""Classes that were written for a sequential loop, run on any executor without a change.

:func:`run` takes a server whose clients have the hooks ``communicate``, ``update``, ``train`` and
``evaluate``, and runs its rounds; :func:`state_of` returns everything that the objects hold, to
compare two runs bit for bit.
"""

from fedbench.legacy.run import run
from fedbench.legacy.state import state_of

__all__ = ["run", "state_of"]
