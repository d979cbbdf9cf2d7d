"""Files and programs that a test puts in place of those of a machine."""

from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, str]) -> Path:
    """Write texts below a folder by their paths; return the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def write_programs(folder: Path, scripts: Mapping[str, str], shell: str = "/bin/sh") -> Path:
    """Write shell scripts that can be executed by their names; return the folder."""
    texts = {name: f"#!{shell}\n{script}\n" for name, script in scripts.items()}
    write_files(folder, texts)
    for name in texts:
        (folder / name).chmod(0o755)
    return folder
