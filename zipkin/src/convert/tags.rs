//! Tags, and the endpoint of the other side.

use crate::model::{Endpoint, Kind};

use super::Texts;
use super::core::Core;
use super::read::V1;
use super::sides::Sides;

/// The endpoints of the address annotations.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    client: Option<Endpoint>,
    server: Option<Endpoint>,
    message: Option<Endpoint>,
}

/// Adds each tag to its side, and returns the addresses. The values of address annotations are ignored: some tracers write
/// "1" for true.
pub(super) fn add_tags(source: &V1<'_>, texts: Texts<'_>, sides: &mut Sides<'_>) -> Addresses {
    let mut addresses = Addresses::default();
    for tag in &source.tags {
        match tag.key {
            "ca" => addresses.client = tag.endpoint.as_deref().cloned(),
            "sa" => addresses.server = tag.endpoint.as_deref().cloned(),
            "ma" => addresses.message = tag.endpoint.as_deref().cloned(),
            key => {
                let side = sides.of(tag.endpoint.as_deref());
                let only_marks_the_endpoint = key == "lc" && tag.value.is_empty();
                if !only_marks_the_endpoint && texts.has(key) {
                    sides.span(side).tags.insert(key.to_owned(), tag.value.clone().into_owned());
                }
            }
        }
    }
    addresses
}

/// Sets the remote endpoint of each side.
pub(super) fn add_addresses(addresses: Addresses, core: &Core<'_>, sides: &mut Sides<'_>) {
    let Addresses { client, server, message } = addresses;
    if core.no_call() && (client.is_some() || server.is_some()) {
        return add_addresses_without_call(client, server, sides);
    }
    if let Some(client) = client {
        add_client_address(client, core, sides);
    }
    if let (Some(server), Some(mark)) = (server, core.client_send.or(core.client_receive)) {
        let side = sides.of(Some(mark.endpoint));
        sides.set_remote(side, &server);
    }
    if let Some(broker) = message {
        for mark in [core.message_send, core.message_receive].into_iter().flatten() {
            let side = sides.of(Some(mark.endpoint));
            sides.set_remote(side, &broker);
        }
    }
}

/// Without core annotations, the sides follow from the addresses themselves.
fn add_addresses_without_call(client: Option<Endpoint>, server: Option<Endpoint>, sides: &mut Sides<'_>) {
    match (client, server) {
        (Some(client), Some(server)) => {
            let side = sides.of(Some(&client));
            sides.set_remote(side, &server);
        }
        (Some(client), None) => {
            sides.set_kind(Sides::FIRST, Kind::Server);
            sides.set_remote(Sides::FIRST, &client);
        }
        (None, server) => sides.span(Sides::FIRST).remote_endpoint = server,
    }
}

/// Sets the client's address on the server's side. Finagle's servers give the client's socket their own service name; that
/// name is removed, so that the service does not seem to call itself.
fn add_client_address(mut client: Endpoint, core: &Core<'_>, sides: &mut Sides<'_>) {
    let Some(server) = core.server_receive.or(core.server_send) else { return };
    if client == *server.endpoint {
        return;
    }
    if client.service_name == server.endpoint.service_name {
        client.service_name = None;
    }
    let side = sides.of(Some(server.endpoint));
    sides.set_remote(side, &client);
}
