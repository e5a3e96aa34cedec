//! The `turret` command: reads the arguments, hands them to the subcommands, turns errors into exit code 1.

mod command;

fn main() -> std::process::ExitCode {
    command::main()
}
