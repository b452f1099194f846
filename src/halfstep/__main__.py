"""`python -m halfstep`: the command line, of whichever interpreter is asked."""

from halfstep.tools.cli import main

if __name__ == "__main__":
    main(prog_name="halfstep")
