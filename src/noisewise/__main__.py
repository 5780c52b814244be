"""`python -m noisewise` is the command line."""

from noisewise.cli.commands import main

main()
