//! The transport `postgres`: rows in the tables of Salt's returner `pgjsonb`.
//!
//! | table | rows | key of a repeated row |
//! |---|---|---|
//! | `salt_events` | each event | `id`, see [`row_id`]; the sequence of the table makes only positive ones |
//! | `salt_returns` | `salt/job/<jid>/ret/<minion>` | job, minion and all of the return; the table has no key of its own |
//! | `jids` | `salt/job/<jid>/new` | `jid`; a load that Salt has stored itself stays |
//!
//! A batch is one transaction, so it is stored as a whole or not at all, and a repeated one changes
//! nothing.
//!
//! # Invariant
//!
//! Each master of a cluster sees the events of all masters, and runs a daemon with this sink. An event is one row, whoever delivers it, and
//! in whatever order: keys depend on the content alone, not on the arrival at a daemon, and no two transactions of sinks overlap.

use std::time::Duration;

use ring::digest::{Context, SHA256};
use serde::Deserialize;
use serde_json::Value as Json;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;
use xxhash_rust::xxh3::xxh3_64;

use super::deliver::{
    BoxedDestination, DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript,
    Transport,
};
use super::item::Item;
use crate::client::secret::Revealed;
use crate::client::thread::ClientThread;
use crate::client::tls;
use crate::config::ClientTls;
use crate::config::Secret;
use crate::config::{Invalid, within};
use crate::engines::event::Event;
use crate::engines::kind::{Kind, options};
use crate::model::word::{self, MIB};
use crate::wire::salt_event::stamp_of;

const DOC: &str = r"Rows in the tables of Salt's returner pgjsonb.

| option | value | default |
|---|---|---|
| `host` | a name, an address, or the directory of a unix socket | required |
| `port`, `database`, `user` | | 5432, `salt`, `salt` |
| `password` | a secret | none |
| `tables` | any of `jids`, `salt_returns`, `salt_events` | all |
| `encryption` | `required`, or `none`; a unix socket is never encrypted | `required` |
| `tls` | same as `http` | the system's |
| `timeout` | for a connection or a batch | 30s |

The schema is that of [Salt's documentation](https://docs.saltproject.io/en/latest/ref/returners/all/salt.returners.pgjsonb.html); the encoder must be `json`. Each event is a row of `salt_events`, each return also one of
`salt_returns`, each published job also one of `jids`. A batch is one transaction. A repeated event adds no row, even if the daemons of several masters of a cluster deliver it: `salt_events.id` is a negative number
derived from tag and data, or, for an event without `_stamp`, from the store's id and the sequence number. Salt's own rows have positive ids. `salt_returns` gets no second row with the same `jid`, `id` and `full_ret`; an existing row of `jids` stays. `alter_time` is
the arrival at the daemon that came first. Events that PostgreSQL cannot store, such as ones with a NUL character, become dead letters.";

pub(super) const KIND: Kind<BoxedDestination> = Kind {
    name: "postgres",
    doc: DOC,
    example: "{host: db.example.com, port: 5432, database: salt, user: salt, password: 'file:/etc/saltcellar/pg.password', \
              tables: [jids, salt_returns, salt_events], encryption: required, tls: {ca: /etc/ssl/own-ca.pem}, timeout: 30s}",
    build: |given| {
        let postgres: PostgresDestination = options(given)?;
        if postgres.tables.is_empty() {
            return Err(Invalid::new(
                "tables",
                "give at least one of jids, salt_returns, salt_events",
            ));
        }
        within(
            "timeout",
            &postgres.timeout,
            Duration::from_secs(1)..=Duration::from_secs(600),
        )?;
        postgres.tls.check()?;
        Ok(Box::new(postgres))
    },
};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PostgresDestination {
    /// A name, an address, or the directory of a unix socket.
    host: String,
    #[serde(default = "postgres_port")]
    port: u16,
    #[serde(default = "salt")]
    database: String,
    #[serde(default = "salt")]
    user: String,
    #[serde(default, with = "word")]
    password: Option<Secret>,
    #[serde(default = "all_tables")]
    tables: Vec<Table>,
    #[serde(default)]
    encryption: Encryption,
    #[serde(default)]
    tls: ClientTls,
    /// Longest wait for a connection, and for a batch.
    #[serde(default = "thirty_seconds", with = "word")]
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Table {
    Jids,
    SaltReturns,
    SaltEvents,
}

/// Whether a connection over TCP is encrypted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encryption {
    #[default]
    Required,
    None,
}

fn postgres_port() -> u16 {
    5432
}

fn salt() -> String {
    "salt".to_owned()
}

fn all_tables() -> Vec<Table> {
    vec![Table::Jids, Table::SaltReturns, Table::SaltEvents]
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

impl Destination for PostgresDestination {
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport> {
        Box::new(PostgresTransport {
            settings: self.clone(),
            secrets: deps.secrets.clone(),
            connection: None,
        })
    }

    fn describe(&self) -> String {
        let Self {
            host,
            port,
            database,
            ..
        } = self;
        format!("postgres://{host}:{port}/{database}")
    }

    fn limits(&self) -> RequestLimits {
        // A transaction costs a sync of the server, so larger batches pay.
        let bytes = usize::try_from(8 * MIB).unwrap_or(usize::MAX);
        RequestLimits {
            count: 1_000,
            bytes,
            time: Duration::from_millis(200),
        }
    }

    fn encoder(&self) -> Option<&'static str> {
        Some("json")
    }
}

struct PostgresTransport {
    settings: PostgresDestination,
    secrets: Revealed,
    connection: Option<Connection>,
}

struct Connection {
    client: Client,
    /// Last: the client ends before its thread.
    thread: ClientThread,
}

impl Transport for PostgresTransport {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        // Before the connection is used: an event that is no row is the batch's fault, and dividing
        // finds it.
        let rows = Rows::of(items.iter().map(|item| &*item.event), &self.settings.tables)
            .map_err(|error| DeliverError::Refused { reason: error })?;

        // After a failure a new connection is made.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.settings, &self.secrets).map_err(DeliverError::retry)?,
        };

        let result = connection
            .thread
            .wait(self.settings.timeout, rows.insert(&mut connection.client));
        let result = result
            .map_err(DeliverError::retry)
            .and_then(|inserted| inserted.map_err(|error| failure(&error)));

        if let Some(transcript) = transcript {
            transcript.request = rows.shown();
            transcript.response = match &result {
                Ok([events, returns, jids]) => {
                    format!(
                        "inserted: {events} in salt_events, {returns} in salt_returns, {jids} in jids"
                    )
                }
                Err(error) => error.to_string(),
            };
        }
        // A refused batch leaves the connection usable.
        if !matches!(result, Err(DeliverError::Retry { .. })) {
            self.connection = Some(connection);
        }
        result.map(|_| Vec::new())
    }

    fn check(&mut self) -> Result<String, String> {
        let connection = Connection::open(&self.settings, &self.secrets)?;
        // A query without rows shows that the table exists and may be read.
        let place = self.settings.describe();

        for table in &self.settings.tables {
            let name = table.name();
            let query = format!("SELECT FROM {name} LIMIT 0");
            let found = connection.thread.wait(
                self.settings.timeout,
                connection.client.batch_execute(&query),
            )?;
            found.map_err(|error| format!("{place}: table {name}: {}", message(&error)))?;
        }

        let tables = self
            .settings
            .tables
            .iter()
            .map(|table| table.name())
            .collect::<Vec<_>>()
            .join(", ");
        Ok(format!("{place} contains the tables {tables}"))
    }

    fn reopen(&mut self) {
        self.connection = None;
    }
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Self::Jids => "jids",
            Self::SaltReturns => "salt_returns",
            Self::SaltEvents => "salt_events",
        }
    }
}

impl Connection {
    fn open(settings: &PostgresDestination, revealed: &Revealed) -> Result<Self, String> {
        let mut config = Config::new();
        config
            .host(&settings.host)
            .port(settings.port)
            .dbname(&settings.database)
            .user(&settings.user)
            // The server lists its sessions by this name.
            .application_name("saltcellar")
            .connect_timeout(settings.timeout);

        if let Some(password) = &settings.password {
            config.password(
                revealed
                    .secret(password)
                    .map_err(|error| error.to_string())?,
            );
        }
        // A unix socket needs no encryption, and offers none.
        let is_encrypted =
            settings.encryption == Encryption::Required && !settings.host.starts_with('/');
        config.ssl_mode(if is_encrypted {
            SslMode::Require
        } else {
            SslMode::Disable
        });

        let thread = ClientThread::start("sc-sink-client")?;
        let place = settings.describe();
        let failed = |error: &tokio_postgres::Error| {
            format!("cannot connect to {place}: {}", message(error))
        };
        let late = |error: String| format!("cannot connect to {place}: {error}");
        // Two arms, because the connection's type depends on its TLS.
        let client = if is_encrypted {
            let tls = MakeRustlsConnect::new(tls::client(&settings.tls)?);
            let connected = thread
                .wait(settings.timeout, config.connect(tls))
                .map_err(late)?;
            let (client, connection) = connected.map_err(|error| failed(&error))?;
            // The client reports the error of a broken connection.
            thread.spawn(async { _ = connection.await });
            client
        } else {
            let connected = thread
                .wait(settings.timeout, config.connect(tokio_postgres::NoTls))
                .map_err(late)?;
            let (client, connection) = connected.map_err(|error| failed(&error))?;
            thread.spawn(async { _ = connection.await });
            client
        };

        Ok(Self { client, thread })
    }
}

/// The error with the server's details.
fn message(error: &tokio_postgres::Error) -> String {
    // The client shows a server's error as `db error` only.
    if let Some(db) = error.as_db_error() {
        let detail = db
            .detail()
            .map(|detail| format!(" ({detail})"))
            .unwrap_or_default();
        let remedy = match db.code().code() {
            "28000" | "28P01" => "; correct `user` and `password`",
            "3D000" => "; correct `database`, or create it",
            "42P01" | "42703" => {
                "; create the tables as in Salt's documentation of its returner pgjsonb"
            }
            "42501" => "; grant the user INSERT and SELECT on the tables",
            _ => "",
        };
        return format!("{} {}{detail}{remedy}", db.code().code(), db.message());
    }
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("{error}{}", source.unwrap_or_default())
}

/// Errors of the data itself (SQLSTATE classes 22 and 23, and values over a limit) are the events'
/// fault; all others pass.
fn failure(error: &tokio_postgres::Error) -> DeliverError {
    let reason = message(error);
    let code = error
        .code()
        .map(tokio_postgres::error::SqlState::code)
        .unwrap_or_default();
    // 22 and 23: data and constraints; 54: a limit of the server, such as the size of a value.
    match code.get(..2) {
        Some("22" | "23" | "54") => DeliverError::Refused { reason },
        _ => DeliverError::retry(reason),
    }
}

/// Columns of the rows of a batch.
#[derive(Debug, Default)]
struct Rows {
    events: EventRows,
    returns: ReturnRows,
    jids: JidRows,
}

#[derive(Debug, Default)]
struct EventRows {
    id: Vec<i64>,
    tag: Vec<String>,
    data: Vec<String>,
    /// Microseconds since 1970.
    at: Vec<i64>,
    master_id: Vec<String>,
}

#[derive(Debug, Default)]
struct ReturnRows {
    fun: Vec<String>,
    jid: Vec<String>,
    value: Vec<String>,
    id: Vec<String>,
    success: Vec<String>,
    full_ret: Vec<String>,
    at: Vec<i64>,
}

#[derive(Debug, Default)]
struct JidRows {
    jid: Vec<String>,
    load: Vec<String>,
}

const INSERT_EVENTS: &str = "\
    INSERT INTO salt_events (id, tag, data, alter_time, master_id) \
    SELECT id, tag, data::jsonb, 'epoch'::timestamptz + at * interval '1 microsecond', master_id \
    FROM unnest($1, $2, $3, $4, $5) AS new (id, tag, data, at, master_id) \
    ON CONFLICT (id) DO NOTHING";

const INSERT_RETURNS: &str = "\
    INSERT INTO salt_returns (fun, jid, return, id, success, full_ret, alter_time) \
    SELECT fun, jid, value::jsonb, id, success, full_ret::jsonb, 'epoch'::timestamptz + at * interval '1 microsecond' \
    FROM unnest($1, $2, $3, $4, $5, $6, $7) AS new (fun, jid, value, id, success, full_ret, at) \
    WHERE NOT EXISTS (SELECT FROM salt_returns AS old WHERE old.jid = new.jid AND old.id = new.id \
    AND old.full_ret = new.full_ret::jsonb)";

/// Waits for the transactions of other sinks, which may insert the same rows: `salt_returns` has no key that would notice it, and two
/// transactions that insert the same keys in another order wait for each other. All sinks use
/// this number, `saltcel` in ASCII.
const LOCK: &str = "SELECT pg_advisory_xact_lock(32476740758758764)";

const INSERT_JIDS: &str = "\
    INSERT INTO jids (jid, load) SELECT jid, load::jsonb FROM unnest($1, $2) AS new (jid, load) \
    ON CONFLICT (jid) DO NOTHING";

impl Rows {
    fn of<'a>(events: impl Iterator<Item = &'a Event>, tables: &[Table]) -> Result<Self, String> {
        let mut rows = Self::default();
        for event in events {
            rows.add(event, tables).map_err(|error| error.to_string())?;
        }
        Ok(rows)
    }

    fn add(
        &mut self,
        event: &Event,
        tables: &[Table],
    ) -> Result<(), crate::engines::event::Unreadable> {
        let data = event.data()?;
        // The same string goes into several columns, therefore it is made once.
        let text = data.to_string();
        let job = event
            .tag
            .strip_prefix("salt/job/")
            .and_then(|rest| rest.split_once('/'));

        match job {
            // The load that Salt fires; one that Salt has stored itself stays.
            Some((jid, "new")) if tables.contains(&Table::Jids) => {
                self.jids.jid.push(jid.to_owned());
                self.jids.load.push(text.clone());
            }
            Some((jid, rest))
                if rest.starts_with("ret/") && tables.contains(&Table::SaltReturns) =>
            {
                let word = |key: &str| {
                    data.get(key)
                        .and_then(Json::as_str)
                        .unwrap_or_default()
                        .to_owned()
                };

                let rows = &mut self.returns;
                rows.fun.push(word("fun"));
                rows.jid.push(jid.to_owned());
                rows.value
                    .push(data.get("return").unwrap_or(&Json::Null).to_string());
                rows.id
                    .push(rest.strip_prefix("ret/").unwrap_or_default().to_owned());

                // As Salt's returner writes it: without `success` it is false.
                let success = data.get("success").is_some() && !event.outcome().failed();
                rows.success.push(success.to_string());
                rows.full_ret.push(text.clone());
                rows.at.push(event.at.0);
            }
            _ => {}
        }

        if tables.contains(&Table::SaltEvents) {
            let rows = &mut self.events;
            rows.id.push(row_id(event));
            rows.tag.push(event.tag.clone());
            rows.data.push(text);
            rows.at.push(event.at.0);
            rows.master_id.push(event.master_id.to_string());
        }
        Ok(())
    }

    /// Inserts all in one transaction; returns the numbers of new rows per table.
    async fn insert(&self, client: &mut Client) -> Result<[u64; 3], tokio_postgres::Error> {
        let transaction = client.transaction().await?;
        // Before anything is read: a row that another sink inserts meanwhile would be inserted
        // twice.
        transaction.batch_execute(LOCK).await?;

        let mut inserted = [0; 3];
        let Self {
            events,
            returns,
            jids,
        } = self;
        // Whole columns as parameters: one statement per table, whatever the size of the batch.
        if !events.id.is_empty() {
            let EventRows {
                id,
                tag,
                data,
                at,
                master_id,
            } = events;

            let columns = [
                (id as Column<'_>, Type::INT8_ARRAY),
                text(tag),
                text(data),
                (at, Type::INT8_ARRAY),
                text(master_id),
            ];
            inserted[0] = transaction.execute_typed(INSERT_EVENTS, &columns).await?;
        }

        if !returns.jid.is_empty() {
            let ReturnRows {
                fun,
                jid,
                value,
                id,
                success,
                full_ret,
                at,
            } = returns;

            let at: (Column<'_>, Type) = (at, Type::INT8_ARRAY);
            let columns = [
                text(fun),
                text(jid),
                text(value),
                text(id),
                text(success),
                text(full_ret),
                at,
            ];
            inserted[1] = transaction.execute_typed(INSERT_RETURNS, &columns).await?;
        }

        if !jids.jid.is_empty() {
            let JidRows { jid, load } = jids;
            inserted[2] = transaction
                .execute_typed(INSERT_JIDS, &[text(jid), text(load)])
                .await?;
        }
        // Nothing counts before the commit, so an error above leaves no row.
        transaction.commit().await?;
        Ok(inserted)
    }

    /// The rows for people.
    fn shown(&self) -> String {
        let Self {
            events,
            returns,
            jids,
        } = self;

        let mut lines: Vec<_> = events
            .id
            .iter()
            .zip(&events.tag)
            .zip(&events.data)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|((id, tag), data)| format!("salt_events: id {id}, tag {tag}, data {data}"))
            .collect();

        lines.extend(
            returns
                .jid
                .iter()
                .zip(&returns.id)
                .map(|(jid, id)| format!("salt_returns: jid {jid}, id {id}")),
        );
        lines.extend(jids.jid.iter().map(|jid| format!("jids: jid {jid}")));

        lines.join("\n")
    }
}

/// A parameter of a statement.
type Column<'a> = &'a (dyn ToSql + Sync);

fn text(column: &Vec<String>) -> (Column<'_>, Type) {
    (column, Type::TEXT_ARRAY)
}

/// The value of `salt_events.id`: the same at each delivery, from each master of a cluster, and negative.
///
/// ```text
/// bit  63      62 .. 0
///      1       hash of the tag, its length and the data, if these have a `_stamp`
///
/// bit  63      62 .. 40                                    39 .. 0
///      1       hash of the id before its sequence number   sequence number
/// ```
///
/// Salt stamps each event with the microsecond at which it fires it, so equal data are the same event. Other programs may fire equal
/// events. Of a thousand million events, two different events have the same hash with a probability of 5 %.
fn row_id(event: &Event) -> i64 {
    // Negative, because it must not collide with the table's sequence.
    let negative = |bits: u64| (1 << 63 | bits).cast_signed();

    if stamp_of(&event.body).is_some() {
        let mut digest = Context::new(&SHA256);
        digest.update(&(event.tag.len() as u64).to_le_bytes());
        digest.update(event.tag.as_bytes());
        digest.update(&event.body);
        let hash = digest.finish();
        let start = hash.as_ref().first_chunk().expect("a hash of 32 bytes");
        return negative(u64::from_le_bytes(*start));
    }

    let store = event
        .id
        .rsplit_once(':')
        .map_or(event.id.as_str(), |(store, _)| store);
    // Bits of the store keep ids apart when a store is replaced.
    negative(xxh3_64(store.as_bytes()) << 40 & !(1 << 63) | event.seq.0 & ((1 << 40) - 1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{items, open};
    use super::*;
    use crate::engines::event::tests::event;

    #[test]
    fn events_are_rows_of_the_tables_that_salt_would_write() {
        let all = all_tables();
        let ret =
            json!({"fun": "test.ping", "id": "web1", "return": [1], "success": true, "jid": "7"});
        let events = [
            event(
                1,
                "salt/job/7/new",
                "",
                json!({"fun": "test.ping", "minions": ["web1"]}),
            ),
            event(2, "salt/job/7/ret/web1", "web1", ret.clone()),
            event(3, "salt/job/7/ret/web2", "web2", json!({"fun": "a.b"})),
            event(4, "salt/auth", "web1", json!({"result": true})),
        ];
        let rows = Rows::of(events.iter(), &all).unwrap();
        assert_eq!(rows.events.tag.len(), 4);
        assert_eq!(rows.events.data[3], r#"{"result":true}"#);
        assert_eq!(
            (rows.jids.jid, rows.jids.load),
            (vec!["7".to_owned()], vec![rows.events.data[0].clone()])
        );
        assert_eq!(rows.returns.id, ["web1", "web2"]);
        assert_eq!(
            (rows.returns.success, rows.returns.value),
            (
                vec!["true".into(), "false".into()],
                vec!["[1]".into(), "null".to_owned()]
            )
        );
        assert_eq!(rows.returns.full_ret[0], ret.to_string());
        let only = Rows::of(events.iter(), &[Table::SaltReturns]).unwrap();
        assert_eq!(
            (
                only.events.id.len(),
                only.returns.jid.len(),
                only.jids.jid.len()
            ),
            (0, 2, 0)
        );
    }

    #[test]
    fn the_id_of_a_row_is_stable_negative_and_ascends_within_a_store() {
        let id = |store: &str, seq| {
            row_id(&Event {
                id: format!("{store}:{seq}"),
                ..event(seq, "t", "m", json!({}))
            })
        };
        assert!(id("a", 1) < 0 && id("a", 1) < id("a", 2) && id("a", 2) < id("a", 1 << 39));
        assert_eq!(id("a", 5), id("a", 5));
        assert_ne!(id("a", 5), id("b", 5));
    }

    #[test]
    fn an_event_has_the_same_row_whoever_delivers_it() {
        let stamped = |store: &str, seq, tag: &str, data: Json| {
            let event = event(seq, tag, "m", data);
            row_id(&Event {
                id: format!("{store}:{seq}"),
                ..event
            })
        };
        let data = |n: u8| json!({"n": n, "_stamp": "2026-11-21T03:09:55.600000"});

        let id = stamped("a", 1, "t", data(1));
        assert!(id < 0);
        assert_eq!(stamped("b", 7, "t", data(1)), id);
        for other in [stamped("a", 1, "t", data(2)), stamped("a", 1, "u", data(1))] {
            assert!(other < 0 && other != id);
        }

        // Equal data without a time may be two events.
        let bare = |seq| stamped("a", seq, "t", json!({"n": 1}));
        assert_ne!(bare(1), bare(2));
    }

    #[test]
    fn a_server_that_is_absent_or_silent_is_retried() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let options = format!("{{host: 127.0.0.1, port: {port}, encryption: none, timeout: 1s}}");
        let mut transport = open(&KIND, &options);
        let error = transport
            .deliver(&items(&["{}"]), None)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!(
                "cannot connect to postgres://127.0.0.1:{port}/salt: "
            )),
            "{error}"
        );
        drop(silent);
        assert!(transport.check().unwrap_err().contains("cannot connect"));
    }
}
