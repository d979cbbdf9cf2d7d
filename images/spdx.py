"""Write a software bill of materials: `spdx.py IMAGE <packages >IMAGE.spdx.json`.

Each line of standard input is a package: its kind (deb or pypi), name and version. The output is
SPDX 2.3 as JSON (https://spdx.github.io/spdx-spec/v2.3/).
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote


def document(image: str, lines: Iterable[str], created: str) -> dict[str, Any]:
    """Return the SPDX document of an image."""
    packages = sorted({tuple(line.split()[:3]) for line in lines if len(line.split()) >= 3})
    entries = [_package(*package) for package in packages]
    digest = hashlib.sha256(json.dumps([image, packages]).encode()).hexdigest()
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": image,
        "documentNamespace": f"urn:perfdag:sbom:{digest}",
        "creationInfo": {"created": created, "creators": ["Tool: perfdag images/build"]},
        "packages": entries,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": entry["SPDXID"],
            }
            for entry in entries
        ],
    }


def _package(kind: str, name: str, version: str) -> dict[str, Any]:
    namespace = "deb/debian" if kind == "deb" else kind
    locator = f"pkg:{namespace}/{quote(name.lower())}@{quote(version)}"
    return {
        "SPDXID": f"SPDXRef-{hashlib.sha256(locator.encode()).hexdigest()[:16]}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": locator,
            }
        ],
    }


if __name__ == "__main__":
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    json.dump(document(sys.argv[1], sys.stdin, now), sys.stdout, indent=1)
