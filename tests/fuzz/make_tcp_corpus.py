"""Write the seeds of the fuzzers tcp_server and tcp_client: valid messages of every operation."""

import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"
MAGIC = 0x3C85F7CE
VERSION = 4  # DD_TCP_VERSION in csrc/store/tcp_protocol.h


def text(value):
    value = value.encode()
    return struct.pack("<Q", len(value)) + value


def number(value):
    return struct.pack("<q", value)


def count(*items):
    return struct.pack("<Q", len(items)) + b"".join(items)


REQUESTS = {
    "validate": bytes([0]) + struct.pack("<I", MAGIC),
    "set": bytes([1]) + text("/k") + text("value"),
    "compare_set": bytes([2]) + text("/k") + text("value") + text("other"),
    "get": bytes([3]) + text("/k"),
    "add": bytes([4]) + text("/n") + number(5),
    "join": bytes([4]) + text("init/") + number(1),
    "check": bytes([5]) + count(text("/k"), text("/n")),
    "wait": bytes([6]) + count(text("/k"), text("/n"), text("/k")),
    "num_keys": bytes([7]),
    "delete_key": bytes([8]) + text("/k"),
    "append": bytes([9]) + text("/k") + text(" more"),
    "multi_get": bytes([10]) + count(text("/k"), text("/n")),
    "multi_set": bytes([11]) + count(text("/k") + text("1"), text("/n") + text("2")),
    "cancel_wait": bytes([12]),
    "ping": bytes([13]) + struct.pack("<I", 7),
    "offer": bytes([13]) + struct.pack("<I", 0xDD150007),
    "queue_push": bytes([14]) + text("/q") + text("item"),
    "queue_pop": bytes([15]) + text("/q"),
    "queue_len": bytes([16]) + text("/q"),
    "list_keys": bytes([17]),
    "barrier": bytes([18]) + text("/b") + number(2),
    "hello": bytes([64]) + struct.pack("<Iq", VERSION, 77) + text("host") + text("n" * 32),
    "auth": bytes([65]) + text("p" * 32),
    "try_get": bytes([66]) + text("/k"),
    "wait_get": bytes([67]) + text("/k"),
    "wait_pop": bytes([68]) + text("/q"),
    "check_each": bytes([69]) + count(text("/k"), text("/q")),
    "wait_multi_get": bytes([70]) + count(text("/k"), text("/n")),
    "meet": bytes([71]) + text("/p") + number(0 | 2 << 31) + text("12345678card"),
    "meet_last": bytes([71]) + text("/p") + number(1 | 2 << 31) + text("87654321card"),
    "meet_final": bytes([71]) + text("/p") + number(0 | 1 << 31 | 1 << 62) + text("12345678card"),
}

# Replies of a server to each operation, in the order of csrc/store/tcp_protocol.h.
HELLO = struct.pack("<Iqqqq", VERSION, 64, 1024, 32, 4096) + text("") + text("n" * 32) + text("p" * 32)
REPLIES = [
    (2, "compare_set", text("value")),
    (3, "get", text("value")),
    (4, "add", number(5)),
    (5, "check", b"\0"),
    (6, "wait", b"\1"),
    (7, "num_keys", number(3)),
    (10, "multi_get", text("1") + text("") + text("22")),
    (13, "ping", struct.pack("<I", 7)),
    (15, "queue_pop", count(text("item"))),
    (17, "list_keys", count(text("/k"), text("other"), text("/"))),
    (19, "hello", HELLO),
    (20, "auth", b""),
    (23, "wait_pop", count()),
    (24, "check_each", text("\0\1")),
    (25, "wait_multi_get", count(text("1"), text(""), text("22"))),
    (26, "meet", b"\1" + number(0) + text("off")),
]



def answer(tag, reply, status=0):
    return struct.pack("<IBQ", tag, status, len(reply)) + reply


# Calls of a whole store, in the order of make_call in fuzz_tcp_client.c, with an answer for each
# request after the hello.
CALLS = [
    (0, "get", [answer(1, count(text("value")))]),
    (0, "get_late", [answer(1, count()), answer(2, text("\0"))]),
    (2, "add_error", [answer(1, text("what is wrong"), 10)]),
    (2, "add_other_tag", [answer(7, number(1)) + answer(1, number(5))]),
    (4, "wait", [answer(1, b"\0")]),
    (8, "multi_get", [answer(1, count(text("1"), text("2"), text("3")))]),
    (9, "queue_push", [answer(1, b"")]),
    (10, "queue_pop", [answer(1, count(text("item")))]),
    (12, "list_keys", [answer(1, count(text("/k"), text("/")))]),
    (13, "barrier", [answer(1, b"\0")]),
]
PLAIN_CALLS = [
    (0, "get", [b"\0", text("value")]),
    (0, "get_waits", [b"\1", b"\0", b"\0", text("value")]),
    (4, "wait", [b"\0"]),
    (9, "queue_push", [struct.pack("<I", 0)]),
    (12, "list_keys", [count(text("/k"))]),
]


def write(folder, name, data):
    (HERE / folder).mkdir(parents=True, exist_ok=True)
    (HERE / folder / name).write_bytes(data)


def step(flags, data):
    return bytes([flags, len(data)]) + data


def pieces(*parts):
    return b"".join(bytes([len(part)]) + part for part in parts)


def main():
    for name, request in REQUESTS.items():
        first = 4 if request[0] >= 64 and name not in ("hello", "auth") else 2
        first = {"validate": 0, "hello": 3, "auth": 3}.get(name, first)
        half = len(request) // 2
        if first == 4:
            request = struct.pack("<I", 9) + request
        whole = step(1, request) + step(0, request[:half]) + step(0, request[half:])
        write("tcp_server", name, bytes([first]) + whole)
    set_up = step(0, REQUESTS["set"] + REQUESTS["add"] + REQUESTS["queue_push"])
    tagged = [struct.pack("<I", tag) for tag in range(8)]
    set_up_tagged = step(0, b"".join(tagged[0] + REQUESTS[name] for name in ("set", "add", "queue_push")))
    waiting = ("wait_pop", "wait_get", "wait", "barrier", "wait_multi_get")
    waits = b"".join(tagged[i + 1] + REQUESTS[name] for i, name in enumerate(waiting))
    cancels = b"".join(tag + REQUESTS["cancel_wait"] for tag in tagged)
    write("tcp_server", "waited_for", bytes([4]) + step(1, waits) + set_up_tagged)
    write("tcp_server", "waited_for_by_itself", bytes([4]) + step(0, waits) + set_up_tagged)
    write("tcp_server", "cancelled", bytes([4]) + step(1, waits + cancels) + set_up_tagged)
    write("tcp_server", "left", bytes([5]) + step(1, waits) + step(3, b"") + set_up_tagged)
    write("tcp_server", "pipelined", bytes([2]) + set_up + step(4, REQUESTS["multi_get"] * 5) + step(0, b""))
    for number_of_op, name, reply in REPLIES:
        write("tcp_client", f"link_{name}", bytes([number_of_op, 0]) + pieces(reply[:3], reply[3:]))
        write("tcp_client", f"link_extended_{name}", bytes([number_of_op, 1]) + pieces(b"\0" + reply))
        write("tcp_client", f"answer_{name}", bytes([number_of_op, 4]) + answer(1, reply))
    write("tcp_client", "answer_error", bytes([3, 4]) + answer(1, text("what is wrong"), 10))
    write("tcp_client", "link_error", bytes([3, 1]) + pieces(b"\x0a" + text("what is wrong")))
    for which, name, replies in CALLS:
        write("tcp_client", f"call_{name}", bytes([which, 3]) + pieces(b"\0" + HELLO, *replies))
    for which, name, replies in PLAIN_CALLS:
        write("tcp_client", f"plain_{name}", bytes([which, 2]) + pieces(*replies))


if __name__ == "__main__":
    main()
