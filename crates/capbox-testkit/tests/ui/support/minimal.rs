// A provider that does nothing, for programs that must not compile.

use capbox_core::provider::*;

pub struct P;

pub struct Session;

#[derive(Default)]
pub struct Create;

pub struct Exec;

impl From<Command> for Exec {
    fn from(_: Command) -> Self {
        Self
    }
}

#[async_trait]
impl Backend for P {
    const ID: &'static str = "p";
    const FLAGS: Flags = Flags::DEFAULT;

    type Session = Session;
    type Create = Create;
    type Exec = Exec;
    type NativeClient = ();
    type NativeSandbox = ();

    async fn create(&self, _: Create) -> Result<Created<Session>> {
        Ok(Created::new(Session))
    }

    fn id(_: &Session) -> &str {
        "p"
    }

    async fn destroy(_: &Session) -> Result<()> {
        Ok(())
    }

    async fn detach(_: &Session) -> Result<()> {
        Ok(())
    }

    async fn reap(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn native_client(&self) -> &() {
        &()
    }

    fn native(_: &Session) -> &() {
        &()
    }
}
