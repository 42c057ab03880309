#!/usr/bin/env python3
"""
The software bill of materials of a release, from what cargo-cyclonedx wrote for the program.

    python release/sbom.py CHECKOUT DIR     reads saltcellar_bin.cdx.json of the checkout, writes DIR/saltcellar-VERSION.cdx.json

cargo-cyclonedx has no fixed output: it writes a random serial number, the present time, and the path of the checkout.
These are removed, and the Salt extension, which the packages contain, is added.
"""

import datetime
import glob
import json
import os
import re
import subprocess
import sys
from pathlib import Path


#: The property that names the commit.
COMMIT = "saltcellar:commit"


def bill(checkout, commit, text):
    """The bill as a map, the same for every checkout of a commit."""
    text = text.replace(f"file://{checkout}", "file:///saltcellar").replace(checkout, "/saltcellar")
    # cargo leaves the package's name out where the folder has that name.
    text = re.sub(r"file:///saltcellar#(\d)", r"file:///saltcellar#saltcellar@\1", text)
    found = json.loads(text)
    found.pop("serialNumber", None)
    at = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    found["metadata"]["properties"] = [{"name": COMMIT, "value": commit}]
    found["metadata"]["timestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    version = found["metadata"]["component"]["version"]
    found["components"].append(
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/saltext-saltcellar@{version}",
            "name": "saltext.saltcellar",
            "version": version,
            "purl": f"pkg:pypi/saltext-saltcellar@{version}",
            "licenses": [{"expression": "Apache-2.0"}],
        }
    )
    found["components"].sort(key=lambda one: one["bom-ref"])
    return found


def main():
    """Write the bill, and remove what cargo-cyclonedx left in the checkout."""
    checkout, into = sys.argv[1:]
    made = glob.glob(f"{checkout}/**/*.cdx.json", recursive=True)
    # Relative to the checkout, which may itself be below a directory of this name.
    made = [path for path in made if Path(path).relative_to(checkout).parts[0] != "target"]
    (program,) = [path for path in made if re.fullmatch(r"saltcellar(_bin)?\.cdx\.json", os.path.basename(path))]
    commit = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    found = bill(checkout, commit, Path(program).read_text(encoding="utf-8"))
    if len(found["components"]) < 2:
        sys.exit(f"sbom: {program} lists no components")
    for path in made:
        os.remove(path)
    name = f"saltcellar-{found['metadata']['component']['version']}.cdx.json"
    Path(into, name).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
