"""Write the seeds of the fuzzer connect: successful handshakes of every kind, and handshakes that
fail at each step."""

import itertools
import pathlib

HERE = pathlib.Path(__file__).parent / "corpus" / "connect"

# Same as in fuzz_connect.c.
FIRST = {"dialler": 1, "unix": 2, "secret": 4, "busy": 8, "clear": 32}
RIGHT, BYTES, HEAR, CLOSE, LATE = range(5)
WELL, CHANGED = 0, 0x45


def steps(is_dialler, change_at):
    """Return the steps of the peer, one of them with a changed byte."""
    for number in range(3):
        change = CHANGED if number == change_at else WELL
        has_word = number < 2 if is_dialler else number < 1  # a result; a lane
        yield bytes([RIGHT, change]) + bytes(has_word)


def write(name, first, *parts):
    HERE.mkdir(parents=True, exist_ok=True)
    (HERE / name).write_bytes(bytes([sum(FIRST[word] for word in first)]) + b"".join(parts))


def main():
    for role, kind, words in itertools.product([["dialler"], []], [["unix"], []], [[], ["secret"], ["secret", "clear"], ["busy"]]):
        first = role + kind + words
        name = "_".join(first) or "listener"
        write(name, first, *steps(bool(role), None))
        for at in range(3):
            write(f"{name}_changed_{at}", first, *steps(bool(role), at))
    write("late", ["secret"], bytes([RIGHT, WELL, 0, LATE, RIGHT, WELL]))
    write("gone", ["secret"], bytes([RIGHT, WELL, 0, CLOSE, RIGHT, WELL, 0]))
    write("no_hello", [], bytes([BYTES, 5]) + b"GET /", bytes([HEAR]))
    write("descriptors", ["unix"], bytes([BYTES, 0x85]) + b"DDlh\6", bytes([RIGHT, WELL, 0]))
    write("descriptors_offered", ["dialler", "unix"], *list(steps(True, None))[:2], bytes([BYTES, 0x90]) + b"ddring02" + bytes(8))
    write("three_at_once", ["unix"], *(bytes([RIGHT | who << 4, WELL, 0]) for who in (0, 1, 2, 0, 1, 2)))


if __name__ == "__main__":
    main()
