"""`python -m gradwire_server` is the `gradwire-server` command."""

import sys

from gradwire_server.cli import main

sys.exit(main())
