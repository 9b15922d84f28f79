import sys

from dldist.trace import main

sys.exit(main())
