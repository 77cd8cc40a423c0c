//! Single files, streamed through a shell.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::files_over_exec::write_args;
use super::host::{self, Incoming, Outgoing};
use super::shell::{self, Decoder, Encoding};
use crate::api::{Event, ExitStatus, OutputStream, Process, Sandbox, Transferred, WriteOptions};
use crate::capability::answer::Emulate;
use crate::capability::cap;
use crate::capability::rows::{HasStdin, HasStreaming};
use crate::error::Result;
use crate::provider::{self as spi, Table};
use crate::spec::{SandboxPath, Stdin};

/// `files.upload` over `exec.streaming` and `exec.stdin`: `cat`, both ways, never holding more than a few pieces.
///
/// The target is replaced when the content is all there, and left alone otherwise. A new file in the sandbox gets
/// the permission bits of its source.
///
/// # Loss
///
/// "needs a shell, `cat`, `mktemp`, `mv` and `stat`; a killed upload leaves a `.capbox-…` file"
pub enum UploadOverExec {}

impl<P: Table + HasStreaming + HasStdin> Emulate<cap::FilesUpload, P> for UploadOverExec {
    fn emulate(sandbox: Sandbox<P>) -> Arc<dyn spi::FilesUpload> {
        Arc::new(OverExec(sandbox))
    }
}

struct OverExec<P>(Sandbox<P>);

#[async_trait]
impl<P: Table + HasStreaming + HasStdin> spi::FilesUpload for OverExec<P> {
    async fn upload(&self, source: &Path, target: &SandboxPath) -> Result<Transferred> {
        let file = Outgoing::open(source).await?;
        let size = file.size();
        let args = write_args(target, size, WriteOptions::default().with_mode(file.mode()))?;
        let mut process = self.0.spawn(shell::program(shell::WRITE, args)).stdin(Stdin::Open).await?;
        let fed = feed(&mut process, file, source).await;
        // Where not all was fed, the script sees that its input ended early, and cleans up.
        let output = process.output().await?;
        let fed = fed?;
        shell::succeeded(&output, target)?;
        if fed != size {
            return Err(shell::nonsense("claims more than was sent"));
        }
        Ok(Transferred { files: 1, bytes: size, ..Transferred::none() })
    }

    async fn download(&self, source: &SandboxPath, target: &Path) -> Result<Transferred> {
        let mut file = Incoming::create(target).await?;
        let encoding = Encoding::of(&self.0);
        let mut decoder = Decoder::new(encoding);
        let mut process = self.0.spawn(encoding.program(shell::READ, [shell::path(source)?])).await?;
        let mut size = 0;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut broken = None;
        let mut status = ExitStatus::Unknown;
        while let Some(event) = process.next().await? {
            match event {
                Event::Output { stream: OutputStream::Stdout, bytes, .. } => {
                    keep_end(&mut stdout, &bytes);
                    match decoder.push(&bytes) {
                        Ok(bytes) if broken.is_none() => {
                            size += bytes.len() as u64;
                            file.write(bytes).await?;
                        }
                        Ok(_) => {}
                        // It may be a message, where the streams are merged: then the status will tell.
                        Err(error) => broken = Some(error),
                    }
                }
                Event::Output { stream: OutputStream::Stderr, bytes, .. } => keep_end(&mut stderr, &bytes),
                Event::Gap { .. } => return Err(shell::nonsense("has a gap")),
                Event::Exited(exit) => status = exit.status,
            }
        }
        if !status.success() {
            let said = if stderr.is_empty() { stdout } else { stderr };
            return Err(shell::failure(status, &said, source));
        }
        broken.map_or(Ok(()), Err)?;
        decoder.finish()?;
        file.place(None, None).await?;
        Ok(Transferred { files: 1, bytes: size, ..Transferred::none() })
    }
}

/// Write all of `file` to the process, as far as it reads; gives how much that was.
async fn feed<P>(process: &mut Process<P>, file: Outgoing, source: &Path) -> Result<u64> {
    let mut pieces = file.pieces();
    let mut fed = 0;
    while let Some(piece) = pieces.recv().await {
        let piece = piece.map_err(|e| host::error(source, e))?;
        if process.write(&piece).await.is_err() {
            break; // It has ended, and will say why.
        }
        fed += piece.len() as u64;
    }
    Ok(fed)
}

/// Keep the end of what was said, where the message is.
fn keep_end(said: &mut Vec<u8>, bytes: &[u8]) {
    said.extend_from_slice(&bytes[bytes.len().saturating_sub(4096)..]);
    said.drain(..said.len().saturating_sub(4096));
}
