"""The templates that `fedreach init` writes."""

from pathlib import Path

from fedreach._util.errors import ConfigError

FILES = ("experiment.toml", "my_policy.py", "my_data.py")


def write_templates(folder: Path) -> list[Path]:
    """Write the templates into a folder and return their paths.

    Raises:
        ConfigError: If one of the files already exists. No file is written then.
    """
    targets = [folder / name for name in FILES]
    for target in targets:
        if target.exists():
            raise ConfigError(f"{target} already exists and is not overwritten. Choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for target in targets:
        target.write_text(Path(__file__).with_name(target.name).read_text(encoding="utf-8"), encoding="utf-8")
    return targets
