//! Reads the crates of a workspace from `cargo metadata`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::error::StructureError;
use crate::layers::Dependency;

/// The crates of a workspace and the dependencies between them.
#[derive(Debug)]
pub struct Workspace {
    /// The directory of the workspace.
    pub root: PathBuf,
    /// The names of the packages.
    pub packages: Vec<String>,
    /// The normal and build dependencies between these packages, without dev-dependencies.
    pub dependencies: Vec<Dependency>,
    /// The libraries and binaries of these packages.
    pub roots: Vec<CrateRoot>,
}

/// A library or binary, and its root file.
#[derive(Clone, Debug)]
pub struct CrateRoot {
    /// `tollgate-server` for the library of this package, `tollgate-server/tollgate` for its binary `tollgate`.
    pub name: String,
    /// The directory of the package, relative to the workspace.
    pub directory: PathBuf,
    /// The file, relative to the workspace: `crates/server/src/lib.rs`.
    pub file: PathBuf,
}

impl Workspace {
    /// Reads the workspace that contains `directory`, without network access.
    pub fn read(directory: &Path) -> Result<Workspace, StructureError> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--offline", "--format-version", "1", "--no-deps"])
            .current_dir(directory)
            .output()
            .map_err(StructureError::Cargo)?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(StructureError::Metadata(message));
        }
        let json: Value = serde_json::from_slice(&output.stdout).map_err(StructureError::Json)?;
        Workspace::from_json(&json)
    }

    fn from_json(json: &Value) -> Result<Workspace, StructureError> {
        let mut workspace = Workspace {
            root: text(json, "workspace_root")?.into(),
            packages: Vec::new(),
            dependencies: Vec::new(),
            roots: Vec::new(),
        };
        for package in list(json, "packages")? {
            workspace.packages.push(text(package, "name")?.to_owned());
        }
        for package in list(json, "packages")? {
            workspace.add_dependencies(package)?;
            workspace.add_roots(package)?;
        }
        Ok(workspace)
    }

    fn add_dependencies(&mut self, package: &Value) -> Result<(), StructureError> {
        for dependency in list(package, "dependencies")? {
            let to = text(dependency, "name")?;
            // Cargo writes `null` for a normal dependency.
            let is_dev = dependency["kind"] == "dev";
            if !is_dev && self.packages.iter().any(|name| name == to) {
                let from = text(package, "name")?.to_owned();
                self.dependencies.push(Dependency { from, to: to.to_owned() });
            }
        }
        Ok(())
    }

    fn add_roots(&mut self, package: &Value) -> Result<(), StructureError> {
        let name = text(package, "name")?;
        let manifest = self.relative(text(package, "manifest_path")?);
        for target in list(package, "targets")? {
            let is = |kind| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&kind));
            let name = if is("lib".into()) || is("proc-macro".into()) {
                name.to_owned()
            } else if is("bin".into()) {
                format!("{name}/{}", text(target, "name")?)
            } else {
                continue;
            };
            let directory = manifest.parent().unwrap_or(&manifest).to_owned();
            let file = self.relative(text(target, "src_path")?);
            self.roots.push(CrateRoot { name, directory, file });
        }
        Ok(())
    }

    fn relative(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        path.strip_prefix(&self.root).unwrap_or(path).to_owned()
    }
}

fn text<'json>(json: &'json Value, field: &'static str) -> Result<&'json str, StructureError> {
    json[field].as_str().ok_or(StructureError::Format(field))
}

fn list<'json>(json: &'json Value, field: &'static str) -> Result<&'json [Value], StructureError> {
    json[field].as_array().map(Vec::as_slice).ok_or(StructureError::Format(field))
}
