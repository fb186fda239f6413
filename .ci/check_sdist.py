"""What an sdist holds: every file that git tracks, and what setuptools adds.

python .ci/check_sdist.py dist/bn_ext-*.tar.gz, in a clone.
"""

import subprocess
import sys
import tarfile

#: {file that git tracks and no sdist needs: why}
LEFT_OUT: dict[str, str] = {}
ADDED = ("PKG-INFO", "setup.cfg", "bn_ext.egg-info/")

(path,) = sys.argv[1:]
with tarfile.open(path) as archive:
    packed = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True)
tracked = set(listed.stdout.split("\0")) - {""}
missing = sorted(tracked - packed - set(LEFT_OUT))
strange = sorted(name for name in packed - tracked if not name.startswith(ADDED))
assert not missing, f"{path} lacks {', '.join(missing)}"
assert not strange, f"{path} holds what git does not track: {', '.join(strange)}"
print(f"{path}: all {len(tracked)} files that git tracks")
