"""A handler for a dldist server and for torch's. As a program, run torch's: `worker_server_cases.py
PATH`, until stdin ends."""

import os
import sys


def case(request, response):
    """Handle a request. The parameter `what` selects the behaviour."""
    action = request.get_param("action")
    if action == "raise":
        raise ValueError("bad é")
    if action == "exit":
        raise SystemExit(3)
    if action == "status":
        response.set_status(int(request.get_param("status")))
    elif action == "bytes":
        response.set_content(b"\x00\xff", "application/octet-stream")
        response.set_status(201)
    elif action == "twice":
        response.set_content("1", "text/plain")
        response.set_content("2", "text/html")
    elif action != "nothing":
        response.set_content(f"{request.body()}|{request.get_param('a')}|é", "text/plain")


def main():
    import torch  # noqa: F401
    from torch._C import _distributed_c10d as torch_module

    torch_module._register_handler("case", case)
    server = torch_module._WorkerServer(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.read()
    del server
    os._exit(0)  # at exit, torch's table of handlers outlives the interpreter and crashes


if __name__ == "__main__":
    main()
