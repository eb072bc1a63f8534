"""How pytest-xdist shares the tests out: what needs something dear together goes together."""

import re

import pytest


def group(nodeid):
    """Return the name of the tests that `nodeid` runs with.

    The tests of the built wheel and those on Ray, of which one cluster serves all, are a group
    each; the rest goes file by file.
    """
    file, _, test = nodeid.partition("::")
    if "/packaging/" in file:
        return "packaging"
    return "ray" if re.search(r"[\[_/'-]ray[\]_'-]", f"{file}::{test}") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Make the scheduler of `--dist loadscope` that knows our groups."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group(nodeid)

        def remove_node(self, node):
            """Hand on what a dead process had left, and return the test that it died in.

            pytest-xdist would hand on what was finished, too: whoever gets such a group has
            nothing to report, is never given another one, and the run waits for ever. And it
            would run the deadly test again, with the next process.
            """
            units = self.assigned_work.pop(node)
            unfinished = {name: unit for name, unit in units.items() if not all(unit.values())}
            deadly = None
            if unfinished:
                running = next(iter(unfinished.values()))
                deadly = next(test for test, finished in running.items() if not finished)
                running[deadly] = True
            self.workqueue.update(
                {name: unit for name, unit in unfinished.items() if not all(unit.values())}
            )
            for other in self.assigned_work:
                self._reschedule(other)
            return deadly

        def _reschedule(self, node):
            """Give `node` work until three tests wait: it begins one when it knows the next."""
            while (
                self.workqueue
                and not node.shutting_down
                and self._pending_of(self.assigned_work[node]) <= 2
            ):
                self._assign_work_unit(node)
            if not self.workqueue:
                node.shutdown()

    return ByGroup(config, log)
