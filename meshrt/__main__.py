"""``python -m meshrt`` is ``meshrt``."""

from meshrt.cli.main import main

if __name__ == "__main__":
    main()
