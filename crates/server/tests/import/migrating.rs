//! The statements of docs/guide/migrating.md.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{directory, printed, tollgate};

const DOCUMENT: &str = include_str!("../../../../docs/guide/migrating.md");

const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the rules files in the document.
fn files() -> Vec<&'static str> {
    let blocks = DOCUMENT.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

#[test]
fn every_rules_file_of_the_guide_is_valid_without_a_warning() {
    let files = files();
    assert!(files.len() >= 4, "{}", files.len());
    for text in files {
        let directory = directory(&[("rules.yaml", text)]);
        let output = tollgate(directory.path(), &["validate", "rules.yaml"]);
        let (code, _, problems) = printed(&output);
        assert_eq!((code, problems), (Some(0), ""), "{text}");
    }
}

/// An nginx on its own socket, which is stopped when this is dropped.
struct Nginx(Child);

impl Nginx {
    fn start(directory: &Path, limit: &str) -> Nginx {
        let root = directory.display();
        let configuration = format!(
            "daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/error.log;
             events {{}}
             http {{
               access_log off;
               client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
               uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
               limit_req_zone $server_name zone=z:1m rate=1r/m;
               limit_req_status 429;
               server {{ server_name all; listen unix:{root}/socket; {limit} location / {{ try_files /none =204; }} }}
             }}"
        );
        let path = directory.join("nginx.conf");
        fs::write(&path, configuration).unwrap();
        let mut command = Command::new("nginx");
        command.env("PATH", "/usr/sbin:/usr/local/sbin:/usr/bin:/bin");
        command.arg("-e").arg(directory.join("error.log")).arg("-c").arg(&path);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Nginx(child.expect(
            "cannot start nginx; install it, for example with `apt-get install nginx-light`",
        ))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the server listens, and returns the status of a request.
fn status(socket: &Path) -> u16 {
    let began = Instant::now();
    let mut stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) => {
                assert!(began.elapsed() < PATIENCE, "nginx does not listen: {error}");
                std::thread::yield_now();
            }
        }
    };
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Both admit the same number of requests at once. With one request per minute, the duration of the test does not matter.
#[test]
fn leaky_bucket_admits_as_many_requests_as_nginx() {
    for burst in [0, 1, 20] {
        let limit = match burst {
            0 => "limit_req zone=z;".to_owned(),
            _ => format!("limit_req zone=z burst={burst} nodelay;"),
        };
        let files = directory(&[]);
        let nginx = Nginx::start(files.path(), &limit);
        let socket = files.path().join("socket");
        let theirs: Vec<bool> = (0..25).map(|_| status(&socket) != 429).collect();
        drop(nginx);
        let trace: String = (0..25).map(|_| "0,a\n").collect();
        fs::write(files.path().join("trace.csv"), format!("at_us,key\n{trace}")).unwrap();
        let limit = format!("leaky-bucket capacity={} leak=1/m mode=policing", burst + 1);
        let output = tollgate(files.path(), &["replay", "--limit", &limit, "trace.csv"]);
        let (code, stdout, _) = printed(&output);
        assert_eq!(code, Some(0));
        let ours: Vec<bool> =
            stdout.lines().map(|line| line.contains(r#""allowed":true"#)).collect();
        assert_eq!(ours, theirs, "burst={burst}");
        assert_eq!(ours.iter().filter(|allowed| **allowed).count(), burst + 1);
    }
}
