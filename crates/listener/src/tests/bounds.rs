//! The deadlines of a connection.

use super::*;

#[test]
fn silent_client_is_closed() {
    let listening = TestListener::start(Bounds { first_byte: SHORT, ..AMPLE });
    let start = Instant::now();
    listening.client().is_closed();
    took(start, SHORT);
    assert_eq!(listening.closed(CloseReason::FirstByte), 1);
    until("gone", || listening.connections.open() == 0);
    assert_eq!(listening.connections.accepted(), 1);
}

#[test]
fn connection_is_closed_when_a_head_is_too_slow() {
    let listening = TestListener::start(Bounds { request: SHORT, ..AMPLE });
    let start = Instant::now();
    let endless = "GET / HTTP/1.1\r\nx: ".bytes().chain(std::iter::repeat_n(b'x', 10_000));
    listening.client().dribbles(endless);
    took(start, SHORT);
    assert_eq!(listening.closed(CloseReason::Request), 1);
}

#[test]
fn connection_is_closed_when_a_body_is_too_slow() {
    let listening = TestListener::start(Bounds { request: SHORT, ..AMPLE });
    let mut client = listening.client();
    let start = Instant::now();
    client.send("POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 10000\r\n\r\n");
    client.dribbles(std::iter::repeat_n(b'x', 10_000));
    took(start, SHORT);
    assert_eq!(listening.closed(CloseReason::Request), 1);
}

#[test]
fn connection_is_closed_when_a_pipelined_body_is_missing() {
    let listening = TestListener::start(Bounds { request: SHORT, ..AMPLE });
    let mut client = listening.client();
    let start = Instant::now();
    client.send(
        "GET / HTTP/1.1\r\nhost: a\r\n\r\nPOST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n",
    );
    assert!(client.answer().ends_with("hello"));
    client.is_closed();
    took(start, SHORT);
    assert_eq!(listening.closed(CloseReason::Request), 1);
}

#[test]
fn connection_is_closed_when_idle_for_too_long() {
    let listening = TestListener::start(Bounds { idle: SHORT, ..AMPLE });
    let mut client = listening.client();
    for _ in 0..3 {
        client.get("/");
        assert!(client.answer().starts_with("HTTP/1.1 200 OK\r\n"));
    }
    let start = Instant::now();
    client.is_closed();
    // The answer was sent slightly before it was read.
    took(start, SHORT - Duration::from_millis(100));
    assert_eq!(listening.closed(CloseReason::Idle), 1);
}

#[test]
fn each_request_has_its_own_time() {
    let listening = TestListener::start(Bounds { request: SHORT, idle: 2 * SHORT, ..AMPLE });
    let mut client = listening.client();
    let start = Instant::now();
    // Each request comes in two parts, and together they take longer than one may.
    while start.elapsed() < 3 * SHORT {
        client.send("GET / HTTP/1.1\r\n");
        client.hears_nothing_for(Duration::from_millis(5));
        client.send("host: a\r\n\r\n");
        assert!(client.answer().ends_with("hello"));
    }
}

#[test]
fn a_client_that_does_not_read_its_answer_is_closed() {
    let listening = TestListener::start(Bounds { idle: SHORT, ..AMPLE });
    let mut client = listening.client();
    let start = Instant::now();
    client.get("/big");
    until("closed", || listening.closed(CloseReason::Idle) == 1);
    took(start, SHORT);
    assert!(client.rest().len() < BIG_BYTES);
}

#[test]
fn a_client_that_reads_slowly_gets_its_whole_answer() {
    let idle = Duration::from_secs(1);
    let listening = TestListener::start(Bounds { idle, ..AMPLE });
    let mut client = listening.client();
    client.get("/big");
    let start = Instant::now();
    let mut part = vec![0; BIG_BYTES / 20];
    for _ in 0..20 {
        client.stream.read_exact(&mut part).unwrap();
        std::thread::sleep(idle / 15);
    }
    took(start, idle);
    // The head came first, so that much of the body is left.
    assert!(!client.rest().is_empty());
}

#[test]
fn answer_has_no_deadline() {
    let bounds = Bounds { first_byte: SHORT, request: SHORT, idle: SHORT, ..AMPLE };
    let listening = TestListener::start(bounds);
    let mut client = listening.client();
    client.get("/slow");
    client.hears_nothing_for(4 * SHORT);
    listening.gate.add_permits(1);
    assert!(client.answer().ends_with("slow"));
    client.is_closed();
    assert_eq!(listening.closed(CloseReason::Idle), 1);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let listening = TestListener::start(Bounds { idle: SHORT, ..AMPLE });
    let mut client = listening.client();
    let three = "GET / HTTP/1.1\r\nhost: a\r\n\r\n\
                 POST /length HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc\
                 GET /missing HTTP/1.1\r\nhost: a\r\n\r\n";
    // More than hyper answers at once.
    client.send(three.repeat(20));
    for _ in 0..20 {
        assert!(client.answer().ends_with("hello"));
        assert!(client.answer().ends_with("\r\n\r\n3"));
        assert!(client.answer().starts_with("HTTP/1.1 404"));
    }
    client.is_closed();
    assert_eq!(listening.closed(CloseReason::Idle), 1);
}

#[test]
fn requests_wait_while_another_is_answered() {
    let listening = TestListener::start(Bounds { request: SHORT, ..AMPLE });
    let mut client = listening.client();
    client.get("/slow");
    client.get("/");
    client.send("GET / HTTP/1.1\r\n");
    client.hears_nothing_for(2 * SHORT);
    listening.gate.add_permits(1);
    assert!(client.answer().ends_with("slow"));
    assert!(client.answer().ends_with("hello"));
    client.send("host: a\r\n\r\n");
    assert!(client.answer().ends_with("hello"));
}

#[test]
fn unread_body_does_not_block_the_next_request() {
    let listening = TestListener::start(AMPLE);
    let mut client = listening.client();
    for _ in 0..2 {
        client.send("POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc");
        assert!(client.answer().ends_with("unread"));
    }
}

#[test]
fn answer_is_received_when_the_request_was_not_read_completely() {
    let listening = TestListener::start(AMPLE);
    let mut client = listening.client();
    client.send("POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 2000000\r\n\r\n");
    client.send(vec![b'x'; 1_000_000]);
    assert!(client.rest().ends_with("unread"));
    // The server has sent its last answer and still reads, because a reset would be an error for the client's
    // system.
    client.send(vec![b'x'; 500_000]);
    client.send(vec![b'x'; 500_000]);
}

#[test]
fn client_that_sends_after_the_last_answer_is_closed() {
    let listening = TestListener::start(AMPLE);
    let mut client = listening.client();
    client.send("GET / HTTP/1.0\r\n\r\n");
    assert!(client.rest().ends_with("hello"));
    // The client does not close; the server does, after a second.
    until("gone", || listening.connections.open() == 0);
    let mut client = listening.client();
    client.send("GET / HTTP/1.0\r\n\r\n");
    let endless = std::iter::repeat_with(|| client.stream.write(&[b'x'; 65_536]));
    assert!(endless.take(10_000).any(|written| written.is_err()));
}

#[test]
fn request_deadline_includes_100_continue() {
    let listening = TestListener::start(Bounds { request: SHORT, ..AMPLE });
    let mut client = listening.client();
    let start = Instant::now();
    client.send(
        "POST /length HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n",
    );
    assert_eq!(client.rest(), "HTTP/1.1 100 Continue\r\n\r\n");
    took(start, SHORT);
}
