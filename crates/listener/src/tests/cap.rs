//! The cap on the number of connections.

use super::*;

#[test]
fn longest_silent_connection_without_requests_is_evicted() {
    let listening = TestListener::start(Bounds { max_connections: 3, ..AMPLE });
    let connect = |accepted| {
        let client = listening.client();
        until("accepted", || listening.connections.accepted() == accepted);
        client
    };
    let [mut kept, mut first, mut second] = [1, 2, 3].map(connect);
    // It connected first, but was silent for the shortest time.
    kept.get("/");
    assert!(kept.answer().ends_with("hello"));

    let mut newcomers = [&mut first, &mut second].map(|longest| {
        let mut newcomer = listening.client();
        newcomer.get("/");
        assert!(newcomer.answer().ends_with("hello"));
        longest.is_closed();
        newcomer
    });
    for client in newcomers.iter_mut().chain([&mut kept]) {
        client.get("/");
        assert!(client.answer().ends_with("hello"));
    }
    assert_eq!(listening.closed(CloseReason::Evicted), 2);
    assert_eq!(listening.connections.open(), 3);
}

#[test]
fn connection_in_use_is_not_evicted() {
    let listening = TestListener::start(Bounds { max_connections: 2, ..AMPLE });
    let [mut first, mut second] = [listening.client(), listening.client()];
    first.get("/slow");
    second.send("POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n");
    second.send("a");
    until("accepted", || listening.connections.accepted() == 2);

    let mut newcomer = listening.client();
    newcomer.get("/");
    newcomer.hears_nothing_for(Duration::from_millis(50));
    second.send("bc");
    assert!(second.answer().ends_with("\r\n\r\n3"));
    // Now it is silent, and is evicted.
    assert!(newcomer.answer().ends_with("hello"));
    second.is_closed();
    listening.gate.add_permits(1);
    assert!(first.answer().ends_with("slow"));
    assert_eq!(listening.closed(CloseReason::Evicted), 1);
}

#[test]
fn slot_is_free_when_the_client_has_left() {
    let listening = TestListener::start(Bounds { max_connections: 1, ..AMPLE });
    let mut first = listening.client();
    first.get("/slow");
    until("accepted", || listening.connections.accepted() == 1);
    let mut next = listening.client();
    next.get("/");
    drop(first);
    // Its request is still completed.
    listening.gate.add_permits(1);
    assert!(next.answer().ends_with("hello"));
    assert_eq!(listening.closed(CloseReason::Evicted), 0);
}

#[test]
fn finished_connections_leave_nothing_behind() {
    let listening = TestListener::start(Bounds { max_connections: 4, ..AMPLE });
    for _ in 0..200 {
        let mut client = listening.client();
        client.get("/");
        assert!(client.answer().ends_with("hello"));
    }
    until("gone", || listening.connections.open() == 0);
    assert_eq!(listening.connections.accepted(), 200);
}

/// Opens `count` connections that send the beginning of a request, and no more.
fn stuck(listening: &TestListener, count: usize) -> Vec<Client> {
    let begin = |_| {
        let mut client = listening.client();
        client.send("G");
        client
    };
    (0..count).map(begin).collect()
}

#[test]
fn stalled_clients_do_not_block_known_or_new_clients() {
    let listening = TestListener::start(Bounds { max_connections: 50, ..AMPLE });
    let mut kept: Vec<Client> = (0..5).map(|_| listening.client()).collect();
    for client in &mut kept {
        client.get("/");
        client.answer();
    }
    kept[0].hears_nothing_for(SHORT);
    let start = Instant::now();
    let _stuck = stuck(&listening, 300);
    let mut new = listening.client();
    new.get("/");
    assert!(new.answer().ends_with("hello"));
    // The 255 before it were served and evicted, 45 at a time.
    assert!(start.elapsed() < 10 * SHORT, "{:?}", start.elapsed());
    for client in &mut kept {
        client.get("/");
        assert!(client.answer().ends_with("hello"));
    }
}

#[test]
fn client_that_does_not_read_is_evicted() {
    let listening = TestListener::start(Bounds { max_connections: 1, ..AMPLE });
    let mut unread = listening.client();
    unread.get("/big");
    until("accepted", || listening.connections.accepted() == 1);
    let mut new = listening.client();
    new.get("/");
    let start = Instant::now();
    assert!(new.answer().ends_with("hello"));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(listening.closed(CloseReason::Evicted), 1);
    assert!(unread.rest().len() < BIG_BYTES);
}
