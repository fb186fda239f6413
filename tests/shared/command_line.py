"""bn-ext, run in this process."""

from bn_ext import _cli


def run(capsys, *arguments):
    """Run bn-ext; return (exit status, standard output, standard error)."""
    try:
        status = _cli.main(list(arguments))
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()
