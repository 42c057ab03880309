//! A request for a view, and the calls that it makes with the rights and limits of its reader.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value as Json;

use super::super::access::Access;
use super::super::answer::HttpError;
use super::super::attention::Part;
use super::super::server::HttpServer;
use super::super::v1;
use super::address::{Address, Paging};
use crate::api::budget::Room;
use crate::api::call::{Call, Run};
use crate::base::limits::PAGE_ROWS;

/// A request for a view.
pub(super) struct Ask<'a> {
    pub(super) server: &'a Arc<HttpServer>,
    pub(super) access: &'a Access,
    /// Grows by the response of each operation.
    pub(super) room: &'a Mutex<Room>,
    pub(super) path: &'a [(String, String)],
    pub(super) address: Address<'a>,
}

impl Ask<'_> {
    /// A field of the address that is not empty.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.address.field(name)
    }

    /// The fields of the address for an operation: all that are not empty and do not belong to the
    /// view itself (`own`).
    fn fields(&self, own: &[&str]) -> Result<Vec<(String, Json)>, HttpError> {
        let mut fields: Vec<(String, Json)> = self
            .address
            .of_call(own)
            .map(|(name, value)| (name.to_owned(), Json::from(value)))
            .collect();

        for (name, time) in ["since", "until"].into_iter().zip(self.address.bounds()?) {
            if let Some(time) = time {
                fields.push((name.to_owned(), time.0.into()));
            }
        }

        // The number of rows is the page's, unless the reader has chosen one.
        if self.field("limit").is_none() && !own.contains(&"limit") {
            fields.push(("limit".to_owned(), PAGE_ROWS.into()));
        }

        Ok(fields)
    }

    /// The response of a call, with the rights and limits of the reader.
    pub(super) async fn get<C: Run>(&self, args: C::Args<'static>) -> Result<C::Answer, HttpError> {
        v1::make::<C>(self.server, self.access, self.room, self.path, args).await
    }

    /// Like [`Ask::get`], of a call that has no response for an unknown job or minion.
    pub(super) async fn known<C, A>(&self, args: C::Args<'static>) -> Result<A, HttpError>
    where
        C: Run + Call<Answer = Option<A>>,
    {
        self.get::<C>(args).await?.ok_or_else(v1::not_found::<C>)
    }

    /// Like [`Ask::get`], for a part of a view: an error is shown in its place.
    pub(super) async fn part<C: Run>(&self, args: C::Args<'static>) -> Part<C::Answer> {
        match self.get::<C>(args).await {
            Ok(answer) => Part::Shown(answer),
            Err(error) => Part::Failed {
                error: error.message,
            },
        }
    }

    /// Like [`Ask::part`]; `None` if the limits of the reader leave nothing of it, and the view is
    /// shown without it.
    pub(super) async fn allowed<C: Run>(&self, args: C::Args<'static>) -> Option<Part<C::Answer>> {
        if !v1::may::<C>(self.access) {
            return None;
        }
        Some(self.part::<C>(args).await)
    }

    /// The arguments of a call from the path and the address of this view, but the fields that
    /// belong to the view itself (`own`).
    pub(super) fn args<C: Run>(&self, own: &[&str]) -> Result<C::Args<'static>, HttpError> {
        v1::args_of::<C>(self.path, self.fields(own)?)
    }

    /// The part of the path that names what is shown.
    pub(super) fn name(&self) -> &str {
        self.path.first().map_or("", |(_, name)| name.as_str())
    }

    /// A page of a list, with what its template needs. The query of the next page is in the field
    /// `cursor`, and `form` are the fields of its form.
    pub(super) fn listed<P>(
        &self,
        page: P,
        next: Option<&str>,
        cursor: &str,
        form: &[&str],
    ) -> Result<Listed<P>, HttpError> {
        let paging = self.address.paging(cursor, next);
        Ok(Listed {
            filter: self.address.filter(),
            set: self.address.set(form),
            kept: self.address.kept(form),
            absolute: self.address.absolute()?,
            paging,
            page,
        })
    }
}

/// A page of a list, with the fields of its form and its links.
#[derive(Debug, Serialize)]
pub(super) struct Listed<P> {
    #[serde(flatten)]
    pub(super) page: P,
    #[serde(flatten)]
    paging: Paging,
    filter: HashMap<String, String>,
    /// Fields of the form that restrict the list.
    set: Vec<String>,
    /// Fields of the address that the form sends along.
    kept: Vec<(String, String)>,
    /// The view with absolute timestamps, if its range is relative.
    absolute: Option<String>,
}
