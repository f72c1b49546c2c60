//! `tollgate completions` and `tollgate man`: print shell completions and the manual.

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::print;

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut script);
    print(&String::from_utf8(script)?)
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    // The command `help` gets no page: it prints the same as --help.
    let tollgate = Cli::command().disable_help_subcommand(true);
    let mut tollgate =
        tollgate.subcommand_help_heading("COMMANDS").subcommand_value_name("command");
    tollgate.build();
    let command = match &args.command {
        None => &tollgate,
        Some(name) => tollgate.find_subcommand(name).with_context(|| {
            let names: Vec<_> = tollgate.get_subcommands().map(Command::get_name).collect();
            format!("there is no command `{name}`; use one of {}", names.join(", "))
        })?,
    };
    print(&String::from_utf8(page(command)?)?)
}

/// Returns the manual page of a command. Its last section is the end of the command's help: example, output, exit code.
fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let source = concat!("tollgate ", env!("CARGO_PKG_VERSION"));
    // The manual also has the flags that the short help leaves out.
    let command = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let man = Man::new(command.clone()).source(source).manual("Tollgate");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut notes = Roff::new();
    notes.control("SH", ["NOTES"]);
    notes.control("nf", []);
    for line in command.get_after_help().map(ToString::to_string).unwrap_or_default().lines() {
        notes.text([roman(line)]);
    }
    notes.control("fi", []);
    notes.to_writer(&mut page)?;
    Ok(page)
}
