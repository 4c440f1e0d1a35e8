# SPDX-License-Identifier: Apache-2.0
"""What the program `awaken` gives to Python for a command of this package: `python3 -I start.py COMMAND ...`.

Without -I, Python looks for modules in the current folder, and wherever an entry of PYTHONPATH is empty or relative:
a json.py beside somebody's data would be executed. The environment itself stays as it is, for the programs that
commands start. As __init__.py, this file must be understood by old Pythons.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).absolute().parents[1]))
    sys.argv[0] = "awaken"
    runpy.run_module("awaken", run_name="__main__", alter_sys=True)
