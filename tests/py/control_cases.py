"""A handler for a server of ours and one of torch's, and, as a program, the latter: `control_cases.py PATH`, until stdin ends."""

import os
import sys


def case(request, response):
    """The test says what to do in a parameter."""
    what = request.get_param("what")
    if what == "raise":
        raise ValueError("bad é")
    if what == "exit":
        sys.exit(3)
    if what == "status":
        response.set_status(int(request.get_param("status")))
    elif what == "bytes":
        response.set_content(b"\x00\xff", "application/octet-stream")
        response.set_status(201)
    elif what == "twice":
        response.set_content("1", "text/plain")
        response.set_content("2", "text/html")
    elif what != "nothing":
        response.set_content(f"{request.body()}|{request.get_param('a')}|é", "text/plain")


def main():
    import torch  # noqa: F401
    from torch._C import _distributed_c10d as theirs

    theirs._register_handler("case", case)
    server = theirs._WorkerServer(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.read()
    del server
    os._exit(0)  # torch's table of handlers outlives the interpreter, and ends with a fatal error


if __name__ == "__main__":
    main()
