"""Start the debugger on the rank of the first argument."""

import sys

import dldist

dldist.init_process_group(timeout=20)
rank = dldist.get_rank()


def work():
    value = 1
    dldist.breakpoint(int(sys.argv[1]))
    value = 2
    print("end", value)


work()
dldist.barrier()
