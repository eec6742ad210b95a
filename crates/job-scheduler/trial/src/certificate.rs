//! A certificate for a server named `localhost`, of an authority of its own.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, process};

use hashed_wheel_trial::server::{self, Missing};
use postgres::NoTls;

const MISSING: Missing = Missing {
    program: "openssl",
    package: "openssl",
    instead: "omit the tests of TLS",
};

/// The files of a certificate. The folder is removed when this value is dropped.
#[derive(Debug)]
pub struct Certificate {
    folder: PathBuf,
}

impl Certificate {
    /// Makes an authority, and a certificate that it has signed. `name` is for the folder.
    ///
    /// # Errors
    ///
    /// If openssl is not installed, which comes with the packages of PostgreSQL, or if it fails.
    pub fn new(name: &str) -> Result<Self, Box<dyn Error>> {
        let openssl = server::find("openssl", []).ok_or(MISSING)?;
        let folder = env::temp_dir().join(format!("{name}-{}", process::id()));
        fs::create_dir_all(&folder)?;
        let certificate = Self { folder };
        fs::write(
            certificate.folder.join("extensions"),
            "subjectAltName=DNS:localhost\n",
        )?;
        for arguments in [
            "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=authority",
            "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost",
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 30 \
             -extfile extensions",
        ] {
            let mut command = Command::new(&openssl);
            let made = command
                .args(arguments.split_whitespace())
                .current_dir(&certificate.folder)
                .output()?;
            if !made.status.success() {
                return Err(String::from_utf8_lossy(&made.stderr).into());
            }
        }
        Ok(certificate)
    }

    /// The file with the certificate of the authority.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Lets a server use this certificate. The server writes the files itself, because it accepts
    /// only a key that no other user may read.
    ///
    /// # Errors
    ///
    /// If the server does not do it.
    pub fn install(&self, url: &str) -> Result<(), Box<dyn Error>> {
        let mut client = postgres::Client::connect(url, NoTls)?;
        for name in ["server.crt", "server.key"] {
            let text = fs::read_to_string(self.folder.join(name))?;
            client.batch_execute(&format!(
                "COPY (SELECT unnest(string_to_array('{}', E'\\n'))) TO PROGRAM 'umask 077; cat > {name}'",
                text.trim_end()
            ))?;
        }
        client.batch_execute("ALTER SYSTEM SET ssl = on")?;
        client.batch_execute("SELECT pg_reload_conf()")?;
        Ok(())
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
