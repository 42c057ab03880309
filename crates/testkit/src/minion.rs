//! A minion that signs batches over HTTPS. Real minions use the extension (`salt/src/saltext/saltcellar/utils/https.py`), which implements
//! the same protocol.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use saltcellar_base::clock::Micros;
use saltcellar_base::limits::CLI_ANSWER_TIMEOUT;
use saltcellar_wire::msgpack::{Reader, get};
use saltcellar_wire::signed::{BATCH_PATH, Challenge, Digest, Envelope, HELLO_PATH, sha256};

/// Bytes of the head of a response.
const HEAD_BYTES_MAX: usize = 16 * 1024;

fn odd(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// A minion's private key.
pub struct Signer(RsaKeyPair);

impl Signer {
    /// Reads a key in Salt's format.
    pub fn from_pem(pem: &[u8]) -> io::Result<Self> {
        let key =
            match PrivateKeyDer::from_pem_slice(pem).map_err(|error| odd(error.to_string()))? {
                PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
                PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
                _ => return Err(odd("not an RSA key")),
            };
        key.map(Self).map_err(|error| odd(error.to_string()))
    }

    /// Signs with the scheme that the daemon verifies.
    pub fn sign(&self, text: &[u8]) -> io::Result<Vec<u8>> {
        let mut signature = vec![0; self.0.public_key().modulus_len()];
        let signed = self.0.sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            text,
            &mut signature,
        );
        signed
            .map(|()| signature)
            .map_err(|_| odd("the key cannot sign"))
    }
}

/// The settings shared by all connections to one daemon.
#[derive(Clone)]
pub struct Address {
    to: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl Address {
    /// A daemon whose certificate is for `name` and issued by an authority in `trusted` (PEM).
    pub fn new(address: SocketAddr, name: &str, trusted: &[u8]) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(trusted) {
            let certificate = certificate.map_err(|error| odd(error.to_string()))?;
            roots
                .add(certificate)
                .map_err(|error| odd(error.to_string()))?;
        }

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| odd(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();

        let name = ServerName::try_from(name.to_owned()).map_err(|error| odd(error.to_string()))?;
        Ok(Self {
            to: address,
            name,
            config: Arc::new(config),
        })
    }
}

/// The response to a request.
#[derive(Debug)]
pub struct HttpsAnswer {
    /// The HTTP status code.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// An open connection, kept alive between requests.
pub struct HttpsConnection {
    stream: StreamOwned<ClientConnection, TcpStream>,
    certificate: Digest,
    challenge: Challenge,
    number: u64,
    read: Vec<u8>,
}

impl HttpsConnection {
    /// Connects with TLS, and requests the challenge.
    pub fn open(to: &Address) -> io::Result<Self> {
        let mut connection = Self::connect(to)?;
        let hello = connection.request("GET", HELLO_PATH, &[])?;
        let challenge =
            get(&hello.body, "challenge").and_then(|value| Reader::new(value).bytes().ok());
        let challenge = challenge.and_then(|bytes| Challenge::try_from(bytes).ok());
        connection.challenge =
            challenge.ok_or_else(|| odd("the daemon's hello has no challenge"))?;
        Ok(connection)
    }

    /// Connects with TLS only.
    pub fn connect(to: &Address) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to.to, CLI_ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(CLI_ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(CLI_ANSWER_TIMEOUT))?;
        // Small requests must not wait for the acknowledgement of earlier requests.
        stream.set_nodelay(true)?;

        let tls = ClientConnection::new(to.config.clone(), to.name.clone());
        let mut stream = StreamOwned::new(tls.map_err(|error| odd(error.to_string()))?, stream);

        // Completed now, because the certificate is part of what is signed.
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }

        let shown = stream.conn.peer_certificates().and_then(<[_]>::first);
        let certificate = sha256(shown.ok_or_else(|| odd("the daemon sent no certificate"))?);

        Ok(Self {
            stream,
            certificate,
            challenge: Challenge::default(),
            number: 0,
            read: Vec::new(),
        })
    }

    /// A batch for [`HttpsConnection::post`]: an envelope for this connection, and the frames.
    pub fn sealed(
        &mut self,
        id: &str,
        signer: &Signer,
        time: Micros,
        payload: &[u8],
    ) -> io::Result<Vec<u8>> {
        self.number += 1;
        let envelope = Envelope {
            time,
            challenge: self.challenge,
            number: self.number,
            payload_digest: sha256(payload),
            payload_len: u32::try_from(payload.len())
                .map_err(|_| odd("the payload is too long"))?,
            id,
        };

        let mut batch = envelope.write(&signer.sign(&envelope.signed_text(&self.certificate))?);
        batch.extend_from_slice(payload);
        Ok(batch)
    }

    /// Sends a batch and waits for the response.
    pub fn post(&mut self, batch: &[u8]) -> io::Result<HttpsAnswer> {
        self.request("POST", BATCH_PATH, batch)
    }

    /// Sends a request with a body, and reads the response.
    pub fn request(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<HttpsAnswer> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: saltcellar\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);

        self.send(&request)?;
        self.receive()
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Reads the next response.
    pub fn receive(&mut self) -> io::Result<HttpsAnswer> {
        let head = loop {
            if let Some(end) = memchr::memmem::find(&self.read, b"\r\n\r\n") {
                break end + 4;
            }
            if self.read.len() > HEAD_BYTES_MAX {
                return Err(odd("the head of the answer has no end"));
            }
            self.read_more()?;
        };

        let text =
            // Header names may be in any case. A response that is no text fails below.
            String::from_utf8_lossy(self.read.get(..head).unwrap_or_default()).to_ascii_lowercase();
        let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| odd(format!("not an HTTP answer: {text:.100}")))?;

        let len = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());

        // Every response of the daemon with a body contains this header.
        let end = head + len.unwrap_or(0_usize);
        while self.read.len() < end {
            self.read_more()?;
        }

        let body = self.read.get(head..end).unwrap_or_default().to_vec();
        // Bytes behind the body belong to the next response.
        self.read.drain(..end);
        Ok(HttpsAnswer { status, body })
    }

    /// The hash of the daemon's certificate.
    pub fn certificate(&self) -> &Digest {
        &self.certificate
    }

    /// The challenge of this connection.
    pub fn challenge(&self) -> &Challenge {
        &self.challenge
    }

    fn read_more(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        let got = self.stream.read(&mut piece)?;
        if got == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        self.read
            .extend_from_slice(piece.get(..got).unwrap_or_default());
        Ok(())
    }
}
