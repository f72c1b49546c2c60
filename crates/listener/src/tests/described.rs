//! The information that a request gets about its connection.

use std::net::Shutdown;

use super::*;

#[test]
fn request_knows_the_address_of_its_peer() {
    let listening = TestListener::start(AMPLE);
    let mut client = listening.client();
    let own_address = client.stream.local_addr().unwrap().to_string();
    for _ in 0..2 {
        client.get("/peer");
        assert!(client.answer().ends_with(&own_address));
    }
}

#[test]
fn delayed_answer_ends_when_its_client_closes_its_side() {
    let listening = TestListener::start(AMPLE);
    let mut client = listening.client();
    client.get("/delayed");
    client.stream.shutdown(Shutdown::Write).unwrap();
    client.is_closed();
    until("it has gone", || listening.connections.open() == 0);
}

#[test]
fn answer_that_is_not_delayed_reaches_a_client_that_closed_its_side() {
    let listening = TestListener::start(AMPLE);
    let mut client = listening.client();
    client.get("/slow");
    client.stream.shutdown(Shutdown::Write).unwrap();
    client.hears_nothing_for(SHORT);
    listening.gate.add_permits(1);
    assert!(client.answer().ends_with("slow"));
}
