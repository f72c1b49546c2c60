//! Properties of every command and flag.

use clap::{Arg, Command, CommandFactory};

use super::{Cli, NEVER_EMPTY, OWN_FLAGS, with_command};

/// Returns every flag of every command, without the flags that clap adds.
fn flags() -> Vec<(String, Arg)> {
    let mut tollgate = Cli::command();
    tollgate.build();
    let mut flags = Vec::new();
    for command in tollgate.get_subcommands().filter(|command| command.get_name() != "help") {
        let own = command.get_arguments().filter(|arg| !arg.is_positional());
        let own = own.filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"));
        flags.extend(own.map(|arg| (command.get_name().to_owned(), arg.clone())));
    }
    assert!(flags.len() > 25, "{}", flags.len());
    flags
}

#[test]
fn commands_pass_the_checks_of_clap() {
    Cli::command().debug_assert();
}

#[test]
fn every_flag_has_a_variable_of_its_name() {
    let long_as = |long: &str| long.to_uppercase().replace('-', "_");
    for (command, flag) in flags() {
        let long = flag.get_long().unwrap();
        let variable =
            flag.get_env().unwrap_or_else(|| panic!("{command} --{long} has no variable"));
        assert_eq!(variable.to_str().unwrap(), format!("TOLLGATE_{}", long_as(long)), "{command}");
    }
}

/// A URL may have a password in it.
#[test]
fn help_hides_the_values_of_secrets_and_urls() {
    for (command, flag) in flags() {
        let long = flag.get_long().unwrap();
        let names = flag.get_value_names().unwrap_or_default();
        let is_secret = long == "store"
            || names
                .iter()
                .any(|name| ["TOKEN", "SECRET", "PASSWORD", "URL"].contains(&name.as_str()));
        assert_eq!(flag.is_hide_env_values_set(), is_secret, "{command} --{long}");
    }
}

#[test]
fn every_command_and_flag_has_help_and_every_command_an_example() {
    for (command, flag) in flags() {
        assert!(flag.get_help().is_some(), "{command} --{}", flag.get_long().unwrap());
    }
    let tollgate = Cli::command();
    for command in tollgate.get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(!about.is_empty() && !about.ends_with('.'), "{}", command.get_name());
        assert!(command.get_after_help().is_some(), "{}", command.get_name());
    }
    let names: Vec<_> = tollgate.get_subcommands().map(Command::get_name).collect();
    assert_eq!(names[..2], ["serve", "check"], "the commands that most people need come first");
}

#[test]
fn serve_is_the_default_command() {
    for (given, want) in [
        ("tollgate", "tollgate serve"),
        ("", "tollgate serve"),
        ("tollgate --config a.yaml", "tollgate serve --config a.yaml"),
        ("tollgate --config=a.yaml --help", "tollgate serve --config=a.yaml --help"),
        ("tollgate --cofnig a.yaml", "tollgate serve --cofnig a.yaml"),
        ("tollgate serve --config a.yaml", "tollgate serve --config a.yaml"),
        ("tollgate check free k", "tollgate check free k"),
        ("tollgate serv", "tollgate serv"),
        ("tollgate --help", "tollgate --help"),
        ("tollgate -h", "tollgate -h"),
        ("tollgate --version", "tollgate --version"),
        ("tollgate -V", "tollgate -V"),
    ] {
        let read = with_command(given.split_whitespace().map(Into::into));
        assert_eq!(read.join(" ".as_ref()), want, "{given}");
    }
}

#[test]
fn own_flags_are_the_flags_of_tollgate_itself() {
    let mut tollgate = Cli::command();
    tollgate.build();
    let flags = tollgate.get_arguments().flat_map(|arg| {
        [format!("-{}", arg.get_short().unwrap()), format!("--{}", arg.get_long().unwrap())]
    });
    assert_eq!(flags.collect::<Vec<_>>(), OWN_FLAGS);
}

#[test]
fn flags_that_are_never_empty_exist() {
    let flags = flags();
    for id in NEVER_EMPTY {
        assert!(flags.iter().any(|(_, flag)| flag.get_id() == id), "{id}");
    }
}
