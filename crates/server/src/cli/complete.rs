//! The flags of `tollgate completions` and `tollgate man`.

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that will read the completions
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command to describe, such as `serve`; without it, `tollgate` itself
    pub(crate) command: Option<String>,
}

pub(super) const COMPLETIONS_EXAMPLE: &str = r#"bash:       tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate
zsh:        tollgate completions zsh > ~/.zfunc/_tollgate
            with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
fish:       tollgate completions fish > ~/.config/fish/completions/tollgate.fish
elvish:     tollgate completions elvish >> ~/.config/elvish/rc.elv
powershell: tollgate completions powershell >> $PROFILE"#;

pub(super) const MAN_EXAMPLE: &str = r#"Read it:    tollgate man serve | man -l -
Install:    tollgate man > /usr/local/share/man/man1/tollgate.1
            tollgate man serve > /usr/local/share/man/man1/tollgate-serve.1
            and so on for each command that `tollgate --help` lists"#;
