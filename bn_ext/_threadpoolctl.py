"""What threadpoolctl asks of a build with threads of its own. Imported where it is installed."""

import threadpoolctl

from bn_ext._version import __version__

__all__ = ["Controller"]


class Controller(threadpoolctl.LibController):  # type: ignore[misc, unused-ignore]  # pragma: no cover
    """Lists and limits the threads of bn_ext without OpenMP, like those of a BLAS."""

    user_api = "bn_ext"
    internal_api = "bn_ext"
    filename_prefixes = ("_core",)
    check_symbols = ("bn_ext_get_num_threads", "bn_ext_set_num_threads")

    def get_num_threads(self) -> int:
        """As many as a large call may use."""
        return int(self.dynlib.bn_ext_get_num_threads())

    def set_num_threads(self, num_threads: int) -> None:
        """At most so many from now on."""
        self.dynlib.bn_ext_set_num_threads(num_threads)

    def get_version(self) -> str:
        """bn_ext's."""
        return __version__
