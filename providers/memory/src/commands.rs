//! Commands of which the interpreter's own end too early, or keep the thread.

use std::io::ErrorKind;
use std::time::Duration;

use bashkit::{
    Builtin, BuiltinContext, Command, CommandContext, CommandStatus, Error, ExecResult, async_trait,
};

/// The interpreter's own `sleep` ends after a minute, whatever it is asked for.
pub(crate) struct Sleep;

#[async_trait]
impl Builtin for Sleep {
    async fn execute(&self, context: BuiltinContext<'_>) -> bashkit::Result<ExecResult> {
        let args = context.args.iter().filter(|arg| *arg != "--");
        let times: Option<Vec<Duration>> = args.map(|arg| interval(arg)).collect();
        match times.as_deref() {
            None => Ok(ExecResult::err("sleep: invalid time interval\n", 1)),
            Some([]) => Ok(ExecResult::err("sleep: missing operand\n", 1)),
            Some(times) => {
                let sum = times.iter().fold(Duration::ZERO, |sum, time| sum.saturating_add(*time));
                tokio::time::sleep(sum).await;
                Ok(ExecResult::ok(""))
            }
        }
    }
}

fn interval(text: &str) -> Option<Duration> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(number) => (number, &text[number.len()..]),
        None => (text, "s"),
    };
    if number == "inf" || number == "infinity" {
        return Some(Duration::MAX);
    }
    let seconds = number.parse::<f64>().ok()?
        * match unit {
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => 1.0,
        };
    (seconds >= 0.0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// The interpreter's own `yes` ends after ten thousand lines.
pub(crate) struct Yes;

#[async_trait]
impl Command for Yes {
    async fn execute(&self, context: CommandContext<'_>) -> bashkit::Result<CommandStatus> {
        let mut line = if context.args.is_empty() { "y".to_owned() } else { context.args.join(" ") };
        line.push('\n');
        let lines = line.repeat((4096 / line.len()).max(1));
        loop {
            match context.stdout.write_all(lines.as_bytes()).await {
                Ok(()) => tokio::task::yield_now().await,
                Err(error) => return broken_pipe(error),
            }
        }
    }
}

/// The interpreter's own `head` takes a time that grows with the square of the lines, and keeps the thread.
pub(crate) struct Head;

#[async_trait]
impl Command for Head {
    async fn execute(&self, context: CommandContext<'_>) -> bashkit::Result<CommandStatus> {
        let arguments = match HeadArguments::parse(context.args) {
            Ok(arguments) => arguments,
            Err(message) => {
                context.stderr.write_all(format!("head: {message}\n").as_bytes()).await?;
                return Ok(CommandStatus::with_code(1));
            }
        };
        match head(&context, &arguments).await {
            Ok(code) => Ok(CommandStatus::with_code(code)),
            Err(error) => broken_pipe(error),
        }
    }
}

/// What a program shows that nobody reads any more.
fn broken_pipe(error: Error) -> bashkit::Result<CommandStatus> {
    match error {
        Error::Io(error) if error.kind() == ErrorKind::BrokenPipe => Ok(CommandStatus::with_code(141)),
        error => Err(error),
    }
}

async fn head(context: &CommandContext<'_>, arguments: &HeadArguments<'_>) -> bashkit::Result<i32> {
    let HeadArguments { first, headers, files } = arguments;
    let (mut code, mut gap) = (0, "");
    for file in files {
        let (name, mut text) = match *file {
            "-" => ("standard input", None),
            file => match context.fs.read_file(&bashkit::vfs_join(context.cwd, file)).await {
                Ok(text) => (file, Some(text)),
                Err(error) => {
                    let why =
                        if let Error::Io(error) = error { error.to_string() } else { error.to_string() };
                    let message = format!("head: cannot open '{file}' for reading: {why}\n");
                    context.stderr.write_all(message.as_bytes()).await?;
                    code = 1;
                    continue;
                }
            },
        };
        if *headers {
            context.stdout.write_all(format!("{gap}==> {name} <==\n").as_bytes()).await?;
            gap = "\n";
        }
        let mut left = first.count;
        while left > 0 {
            // A file comes in one piece, standard input in many.
            let chunk = match &mut text {
                Some(text) => Some(std::mem::take(text)).filter(|text| !text.is_empty()),
                None => context.stdin.read_chunk().await?,
            };
            let Some(chunk) = chunk else { break };
            let taken = first.taken(&chunk, &mut left);
            context.stdout.write_all(&chunk[..taken]).await?;
        }
    }
    Ok(code)
}

/// How much `head` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct First {
    count: u64,
    lines: bool,
}

impl First {
    /// How many bytes of `chunk` belong to it, where `left` are left to take.
    fn taken(self, chunk: &[u8], left: &mut u64) -> usize {
        if !self.lines {
            let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(chunk.len());
            *left -= taken as u64;
            return taken;
        }
        let mut taken = 0;
        while *left > 0
            && let Some(line) = chunk[taken..].iter().position(|b| *b == b'\n')
        {
            taken += line + 1;
            *left -= 1;
        }
        if *left > 0 { chunk.len() } else { taken }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct HeadArguments<'a> {
    first: First,
    headers: bool,
    files: Vec<&'a str>,
}

impl<'a> HeadArguments<'a> {
    fn parse(args: &'a [String]) -> Result<Self, String> {
        let mut first = First { count: 10, lines: true };
        let (mut headers, mut files) = (None, Vec::new());
        let mut args = args.iter().map(String::as_str);
        while let Some(arg) = args.next() {
            let (lines, value) = match arg {
                "--" => {
                    files.extend(args.by_ref());
                    break;
                }
                "-q" | "--quiet" | "--silent" => {
                    headers = Some(false);
                    continue;
                }
                "-v" | "--verbose" => {
                    headers = Some(true);
                    continue;
                }
                "-n" | "-c" | "--lines" | "--bytes" => (matches!(arg, "-n" | "--lines"), args.next()),
                _ => match arg.strip_prefix("-n").or_else(|| arg.strip_prefix("--lines=")) {
                    Some(value) => (true, Some(value)),
                    None => match arg.strip_prefix("-c").or_else(|| arg.strip_prefix("--bytes=")) {
                        Some(value) => (false, Some(value)),
                        None if arg.len() > 1 && arg.starts_with('-') => (true, Some(&arg[1..])),
                        None => {
                            files.push(arg);
                            continue;
                        }
                    },
                },
            };
            let value = value.ok_or_else(|| format!("option requires an argument -- '{arg}'"))?;
            let count =
                count(value).ok_or_else(|| format!("'{value}' is not a number that is taken here"))?;
            first = First { count, lines };
        }
        if files.is_empty() {
            files.push("-");
        }
        Ok(Self { first, headers: headers.unwrap_or(files.len() > 1), files })
    }
}

/// A number, with `K` or `M` for 1024 and its square. One that counts from the end is refused.
fn count(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u64>().ok())??;
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(interval("1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(interval("2m"), Some(Duration::from_mins(2)));
        assert_eq!(interval("inf"), Some(Duration::MAX));
        assert_eq!(interval("1e30d"), Some(Duration::MAX));
        for wrong in ["", "s", "x", "-1", "1y", "NaN", "é"] {
            assert_eq!(interval(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn heads() {
        let parse = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            HeadArguments::parse(&args)
                .map(|head| (head.first.count, head.first.lines, head.headers, head.files.len()))
        };
        assert_eq!(parse(&[]), Ok((10, true, false, 1)));
        assert_eq!(parse(&["-n", "3", "a", "b"]), Ok((3, true, true, 2)));
        assert_eq!(parse(&["-n3", "-q", "a", "-"]), Ok((3, true, false, 2)));
        assert_eq!(parse(&["-5"]), Ok((5, true, false, 1)));
        assert_eq!(parse(&["-c", "2K"]), Ok((2048, false, false, 1)));
        assert_eq!(parse(&["--bytes=7", "--", "-x"]), Ok((7, false, false, 1)));
        for wrong in [&["-n"][..], &["-n", "-3"], &["-x"], &["-n", "x"], &["-n", ""]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
