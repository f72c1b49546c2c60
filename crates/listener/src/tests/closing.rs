//! Connections when the server drains and closes.

use super::*;

#[test]
fn every_answer_closes_its_connection_while_the_server_drains() {
    let listening = TestListener::start(AMPLE);
    let mut kept = listening.client();
    kept.get("/");
    assert!(!kept.answer().contains("connection: close"));
    listening.phase.send_replace(Phase::Draining);
    let mut new = listening.client();
    for client in [&mut kept, &mut new] {
        client.get("/");
        let answer = client.answer();
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert!(answer.ends_with("hello"));
        client.is_closed();
    }
}

#[test]
fn a_connection_that_is_idle_stays_while_the_server_drains() {
    let listening = TestListener::start(AMPLE);
    let mut kept = listening.client();
    kept.get("/");
    kept.answer();
    listening.phase.send_replace(Phase::Draining);
    kept.hears_nothing_for(SHORT);
}

#[test]
fn closing_ends_silent_connections_and_answers_requests_in_flight() {
    let listening = TestListener::start(AMPLE);
    let [mut silent, mut idle, mut half, mut slow] = std::array::from_fn(|_| listening.client());
    for client in [&mut idle, &mut half] {
        client.get("/");
        client.answer();
    }
    half.send("GET / HTTP/1.1\r\n");
    slow.get("/slow");
    until("accepted", || listening.connections.accepted() == 4);

    listening.phase.send_replace(Phase::Closing);
    silent.is_closed();
    idle.is_closed();
    until("closed", || listening.connections.open() == 2);
    assert!(!listening.serving.is_finished());
    half.send("host: a\r\n\r\n");
    assert!(half.answer().contains("connection: close\r\n"));
    half.is_closed();
    listening.gate.add_permits(1);
    assert!(slow.answer().contains("connection: close\r\n"));
    slow.is_closed();
    listening.finish();
}

#[test]
fn connection_is_closed_after_an_answer_in_flight() {
    let listening = TestListener::start(AMPLE);
    let [mut idle, mut client] = [listening.client(), listening.client()];
    client.get("/big");
    // The client has the head, which promises to keep the connection open.
    let mut head = [0; 12];
    client.stream.read_exact(&mut head).unwrap();
    listening.phase.send_replace(Phase::Closing);
    idle.is_closed();
    let rest = client.rest();
    assert!(rest.len() > BIG_BYTES);
    assert!(!rest.contains("connection: close"));
    listening.finish();
}

#[test]
fn connections_in_the_backlog_are_answered_when_the_server_closes() {
    let mut clients = Vec::new();
    let listening = TestListener::start_after(AMPLE, |address, phase| {
        for _ in 0..50 {
            let mut client = Client::connect(address);
            client.get("/");
            clients.push(client);
        }
        phase.send_replace(Phase::Closing);
    });
    for mut client in clients {
        assert!(client.answer().contains("connection: close\r\n"));
    }
    let address = listening.address;
    listening.finish();
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn cap_applies_to_the_backlog_when_the_server_closes() {
    let mut clients = Vec::new();
    let listening =
        TestListener::start_after(Bounds { max_connections: 2, ..AMPLE }, |address, phase| {
            for _ in 0..6 {
                let mut client = Client::connect(address);
                client.get("/slow");
                clients.push(client);
            }
            phase.send_replace(Phase::Closing);
        });
    until("accepted", || listening.connections.accepted() == 2);
    listening.gate.add_permits(6);
    for mut client in clients {
        assert!(client.answer().ends_with("slow"));
    }
    listening.finish();
}

#[test]
fn closing_is_noticed_while_there_is_no_room() {
    let listening = TestListener::start(Bounds { max_connections: 1, ..AMPLE });
    let mut served = listening.client();
    served.get("/slow");
    until("accepted", || listening.connections.accepted() == 1);
    let mut waits = listening.client();
    waits.get("/");
    waits.hears_nothing_for(SHORT);

    listening.phase.send_replace(Phase::Closing);
    until("nobody is let in", || match TcpStream::connect(listening.address) {
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::ConnectionRefused,
    });
    listening.gate.add_permits(1);
    assert!(served.answer().ends_with("slow"));
    assert!(waits.answer().contains("connection: close\r\n"));
    listening.finish();
}
