//! The program `wheel-top`: see `wheel_top::cli`.

fn main() -> std::process::ExitCode {
    wheel_top::cli::main()
}
