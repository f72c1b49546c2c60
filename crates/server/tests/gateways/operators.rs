//! Clients of proxies with default settings are not operators of a server without an operator token.

use std::fs;
use std::process::Command;

use crate::gateway::{Gateway, GatewayExample};
use crate::server::ServerProcess;

/// The shortest configuration of nginx that passes all requests on to Tollgate. `Example` needs the second port.
const NGINX: &str = "
daemon off;
pid nginx.pid;
error_log stderr warn;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server { listen 127.0.0.1:PORT; location / { proxy_pass http://127.0.0.1:HTTP_PORT; } }
    server { listen 127.0.0.1:SERVICE_PORT; return 204; }
}
";

const CADDY: &str = "
{
	admin off
	auto_https off
}
http://127.0.0.1:PORT {
	reverse_proxy 127.0.0.1:HTTP_PORT {
		header_up Host 127.0.0.1
	}
}
http://127.0.0.1:SERVICE_PORT {
	respond 204
}
";

/// Writes a configuration with the ports of the example.
fn configure(example: &GatewayExample, file: &str, text: &str) {
    let mut variables = example.variables().to_vec();
    // The longest name first, because some names end with another name.
    variables.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let text =
        variables.iter().fold(text.to_owned(), |text, (name, port)| text.replace(name, port));
    fs::write(example.path(file), text).unwrap();
}

fn nginx(tollgate: u16) -> Gateway {
    let example = GatewayExample::of("nginx", tollgate);
    configure(&example, "nginx/nginx.conf", NGINX);
    let mut command = Command::new("nginx");
    command.arg("-p").arg(example.path("")).arg("-c").arg(example.path("nginx/nginx.conf"));
    example.start(&mut command)
}

fn caddy(tollgate: u16) -> Gateway {
    let example = GatewayExample::of("caddy", tollgate);
    configure(&example, "caddy/Caddyfile", CADDY);
    let mut command = Command::new("caddy");
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(example.path("caddy/Caddyfile"));
    command.env("XDG_DATA_HOME", example.path("")).env("XDG_CONFIG_HOME", example.path(""));
    example.start(&mut command)
}

#[test]
fn clients_of_nginx_and_caddy_are_not_operators() {
    let server = ServerProcess::start(&[]);
    let port = server.url.rsplit_once(':').unwrap().1.parse().unwrap();
    for start in [nginx, caddy] {
        let gateway = start(port);
        assert_eq!(gateway.status("127.0.0.1", "/healthz"), 200, "{}", gateway.log());
        let refused = gateway.get("127.0.0.1", "/v1/limits/free/keys/a");
        assert_eq!(refused.status(), 403, "{}", gateway.log());
        let problem = refused.text().unwrap();
        assert!(problem.contains("TOLLGATE_OPERATOR_TOKEN"), "{problem}");
    }
    let direct = server.get("/v1/limits/free/keys/a").send().unwrap();
    assert_eq!(direct.status(), 200);
}
