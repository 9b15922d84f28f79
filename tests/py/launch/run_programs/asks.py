"""Ask for a number on rank 0. Rank 1 prints the contents of a file, which may be a FIFO."""

import os
import sys

if os.environ["RANK"] == "0":
    print("got", input("How many? "))
elif len(sys.argv) > 1:
    with open(sys.argv[1], encoding="utf-8") as file:
        print(file.read())
