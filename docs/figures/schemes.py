"""The pictures that explain: the round, who owns what, and the transport of `processes`."""

from __future__ import annotations

from canvas import Picture, Words

__all__ = ["ownership", "round_flow", "transport"]


def round_flow(words: Words) -> Picture:
    """Draw the data flow of one round, with a client that does not send."""
    picture = Picture(556, "The data flow of one round", words)
    picture.text(95, 22, "server, main thread", "faint")
    picture.text(385, 22, "client tasks, workers", "faint")
    picture.line(240, 10, 240, 546, "grid", dashed=True)

    picture.box(10, 36, 170, ["plan", "who receives,", "who trains, who sends"], "server")
    picture.arrow(95, 104, 95, 126)
    picture.box(10, 126, 170, ["broadcast", "server state, read-only"], "server")

    for number, (name, note) in enumerate(
        [
            ("client 8", "trains, sends"),
            ("client 3", "trains, sends"),
            ("client 5", "trains, keeps silent"),
        ]
    ):
        y = 110 + 80 * number
        picture.box(300, y, 170, [name, note], "client")
        picture.arrow(180, 151, 300, y + 25)
        if number < 2:
            picture.arrow(300, y + 40, 180, 334 + 8 * number)

    picture.text(385, 345, "each task: own state, data,", "faint", size=13)
    picture.text(385, 362, "and random generators", "faint", size=13)

    picture.box(10, 316, 170, ["aggregate", "updates of 8 and 3"], "server")
    picture.arrow(95, 366, 95, 388)
    picture.box(10, 388, 170, ["commit", "server and all clients,", "or nothing"], "server")
    picture.arrow(95, 456, 95, 478)
    picture.box(10, 478, 170, ["evaluate", "when the round asks"], "server")
    picture.text(95, 306, "uplink", "faint", size=13)
    picture.text(184, 124, "downlink", "faint", size=13, anchor="start")
    return picture


def ownership(words: Words) -> Picture:
    """Draw what a client task and the server may read and write."""
    picture = Picture(560, "Who may read and write what: the invariants I1 and I2", words)
    picture.rectangle(10, 10, 460, 96, "server")
    picture.text(240, 32, "main thread (I2)", bold=True)
    picture.box(30, 44, 200, ["server state", "read and written here only"])
    picture.box(250, 44, 200, ["completion callbacks", "run here too"])

    picture.arrow(240, 106, 240, 138)
    picture.box(130, 138, 220, ["broadcast", "all tasks read, none writes"], "memory")

    for number, client in enumerate(("client 3", "client 8")):
        x = 10 + 250 * number
        middle = x + 105
        picture.arrow(240, 188, middle, 232)
        picture.rectangle(x, 232, 210, 216, "client", dashed=True)
        picture.text(middle, 254, f"task of {client} (I1)", bold=True)
        picture.box(x + 20, 266, 170, ["client state", "read and written"])
        picture.box(x + 20, 326, 170, ["data, generators", "of this client only"])
        picture.box(x + 20, 386, 170, ["return value", "written"])
        picture.arrow(middle, 436, 240 + 60 * (2 * number - 1), 486)

    picture.line(226, 330, 254, 358, "stop")
    picture.line(226, 358, 254, 330, "stop")
    picture.text(240, 318, "never", "stop-ink", size=13)

    picture.rectangle(10, 486, 460, 64, "server")
    picture.text(240, 511, "aggregate, on the main thread (I2)", bold=True)
    picture.text(240, 534, "a function of the set of updates, not of their order", size=13)
    return picture


def transport(words: Words) -> Picture:
    """Draw how the processes backend moves broadcast, items and results."""
    picture = Picture(584, "How the backend processes moves data", words)
    picture.rectangle(10, 10, 460, 102, "server")
    picture.text(240, 32, "main process", bold=True)
    picture.box(24, 46, 132, ["broadcast", "once per map"])
    picture.box(174, 46, 132, ["task and items", "cloudpickle"])
    picture.box(324, 46, 132, ["results", "views of slots"])

    picture.arrow(90, 112, 90, 176)
    picture.text(104, 156, "one copy", "faint", size=13, anchor="start")
    picture.box(10, 176, 200, ["shared memory", "tensors, 64-byte aligned"], "memory")
    picture.box(270, 176, 200, ["shared memory", "result slots, reused"], "memory")
    picture.arrow(390, 176, 390, 112)
    picture.text(404, 156, "no copy", "faint", size=13, anchor="start")
    picture.arrow(240, 112, 240, 286)
    picture.text(248, 270, "pipe", "faint", size=13, anchor="start")

    picture.arrow(90, 226, 90, 286)
    picture.text(104, 256, "no copy", "faint", size=13, anchor="start")
    picture.arrow(390, 286, 390, 226)
    picture.text(404, 256, "one copy", "faint", size=13, anchor="start")

    for number in range(2):
        y = 286 + 146 * number
        picture.rectangle(10, y, 460, 134, "client")
        picture.text(240, y + 22, f"worker process {number + 1}", bold=True)
        picture.box(24, y + 34, 132, ["broadcast", "private mapping"])
        picture.box(174, y + 34, 132, ["client task", "one at a time"])
        picture.box(324, y + 34, 132, ["large results", "into a slot"])
        picture.arrow(156, y + 59, 174, y + 59)
        picture.arrow(306, y + 59, 324, y + 59)
        picture.text(240, y + 104, "after each task: has the broadcast been written to?", size=13)
        picture.text(240, y + 122, "then drop the pages that the task dirtied", size=13)
    return picture
