"""How each server is installed and started. `{port}`, `{dir}`, `{here}` and `{www}` are filled in."""
import os
import shutil
import subprocess
import sys
import venv

HERE = os.path.dirname(os.path.abspath(__file__))
PIP, NPM, DEBIAN, OWN = "pip", "npm", "debian", "own"

APACHE = """ServerRoot {dir}
ServerName localhost
Listen 127.0.0.1:{port}
PidFile {dir}/pid
ErrorLog {dir}/error.log
Mutex file:{dir} default
LoadModule mpm_MPM_module /usr/lib/apache2/modules/mod_mpm_MPM.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
User www-data
Group www-data
DocumentRoot {www}
<Directory />
Require all granted
</Directory>
"""
PHP = """LoadModule php_module /usr/lib/apache2/modules/libphp8.2.so
LoadModule rewrite_module /usr/lib/apache2/modules/mod_rewrite.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
TypesConfig /etc/mime.types
<FilesMatch "\\.php$">
SetHandler application/x-httpd-php
</FilesMatch>
RewriteEngine On
RewriteRule ^.*$ {here}/app.php [L]
"""
NGINX = """daemon off; worker_processes 2; pid {dir}/pid; error_log {dir}/error.log;
events {{ }}
http {{ access_log off; sendfile on; tcp_nopush on; client_body_temp_path {dir}/1;
proxy_temp_path {dir}/2; fastcgi_temp_path {dir}/3; uwsgi_temp_path {dir}/4; scgi_temp_path {dir}/5;
server {{ listen 127.0.0.1:{port}; root {www}; }} }}
"""
LIGHTTPD = 'server.document-root = "{www}"\nserver.port = {port}\nserver.bind = "127.0.0.1"\n'

# Name: (where from, what to install, command, its configuration or None).
SERVERS = {}


def add(name, source, needs, command, config=None):
    SERVERS[name] = (source, needs.split(), command.split(), config)


for kind in "last first overtakes closes stops resets deaf dies head prefork".split():
    add(f"like-{kind}", OWN, "", f"python {{here}}/imitations.py {kind} {{port}}")
for name in ("HTTP/1.0", "HTTP/1.1"):
    add(name.replace("HTTP/", "python-"), OWN, "", f"python {{here}}/app.py {name} {{port}}")
for needs in ("tornado==6.6.1", "aiohttp==3.14.5", "sanic==25.12.1", "twisted==26.10.0"):
    add(needs.split("=")[0], PIP, needs, f"python {{here}}/app.py {needs.split('=')[0]} {{port}}")
for needs, code in {
    "waitress==3.0.2": "import waitress; waitress.serve(wsgi, listen=WHERE, _quiet=True)",
    "cheroot==11.1.2": "from cheroot.wsgi import Server; Server(ADDRESS, wsgi).start()",
    "werkzeug==3.1.9": "from werkzeug.serving import run_simple; run_simple(*ADDRESS, wsgi, threaded=True)",
    "gevent==26.9.0": "from gevent import monkey, pywsgi; monkey.patch_all(); "
                      "pywsgi.WSGIServer(ADDRESS, wsgi, log=None).serve_forever()",
    "eventlet==0.41.3": "import eventlet; eventlet.monkey_patch(); from eventlet.wsgi import server; "
                        "server(eventlet.listen(ADDRESS), wsgi, log_output=False)",
    "bjoern==3.2.2": "import bjoern; bjoern.run(wsgi, *ADDRESS)",
}.items():
    where = "ADDRESS = ('127.0.0.1', {port}); WHERE = '127.0.0.1:{port}'"
    add(needs.split("=")[0], PIP, needs, "python -c")
    SERVERS[needs.split("=")[0]][2].append(f"from app import wsgi; {where}; {code}")
GUNICORN = "python -m gunicorn -b 127.0.0.1:{port} -w 4 --log-level critical"
add("gunicorn-sync", PIP, "gunicorn==27.0.1", f"{GUNICORN} app:wsgi")
add("gunicorn-gthread", PIP, "gunicorn==27.0.1", f"{GUNICORN} -k gthread --threads 8 app:wsgi")
add("gunicorn-gevent", PIP, "gunicorn==27.0.1 gevent==26.9.0", f"{GUNICORN} -k gevent app:wsgi")
add("gunicorn-20", DEBIAN, "gunicorn /usr/bin/gunicorn",
    "/usr/bin/gunicorn -b 127.0.0.1:{port} -w 4 -k gthread --threads 8 --log-level critical app:wsgi")
UVICORN = "python -m uvicorn --port {port} --log-level critical app:asgi"
add("uvicorn-h11", PIP, "uvicorn==0.54.0", f"{UVICORN} --http h11")
add("uvicorn-httptools", PIP, "uvicorn==0.54.0 httptools==0.9.0", f"{UVICORN} --http httptools")
add("hypercorn", PIP, "hypercorn==0.18.0",
    "python -m hypercorn -b 127.0.0.1:{port} --log-level CRITICAL app:asgi")
add("granian", PIP, "granian==2.8.7",
    "python -m granian --interface wsgi --port {port} --no-log app:wsgi")
add("daphne", PIP, "daphne==4.2.3", "python -m daphne -p {port} -v 0 app:asgi")
add("uwsgi", PIP, "uwsgi==2.0.31",
    "uwsgi --http11-socket 127.0.0.1:{port} -p 4 -M --disable-logging --need-app --module app:wsgi")
add("node", DEBIAN, "nodejs /usr/bin/node", "node {here}/app.mjs http {port}")
add("fastify", NPM, "fastify@5.12.8", "node {here}/app.mjs fastify {port}")
add("bun", NPM, "bun@1.4.4", "bun {here}/app.mjs fetch {port}")
add("deno", NPM, "deno@2.9.6", "deno run -A {here}/app.mjs fetch {port}")
add("puma", DEBIAN, "puma /usr/bin/puma",
    "puma -b tcp://127.0.0.1:{port} -q -e production {here}/config.ru")
add("thin", DEBIAN, "thin /usr/bin/thin",
    "thin -a 127.0.0.1 -p {port} -R {here}/config.ru -q -e production start")
add("unicorn", DEBIAN, "unicorn /usr/bin/unicorn",
    "unicorn -l 127.0.0.1:{port} -E production -c {dir}/config {here}/config.ru", "worker_processes 4\n")
add("php-s", DEBIAN, "php-cli /usr/bin/php", "php -S 127.0.0.1:{port} {here}/app.php")
add("apache-php", DEBIAN, "libapache2-mod-php /usr/lib/apache2/modules/libphp8.2.so",
    "apache2 -f {dir}/config -DFOREGROUND", APACHE.replace("MPM", "prefork") + PHP)
# These serve files.
add("apache-event", DEBIAN, "apache2-bin /usr/sbin/apache2",
    "apache2 -f {dir}/config -DFOREGROUND", APACHE.replace("MPM", "event"))
add("nginx", DEBIAN, "nginx /usr/sbin/nginx", "nginx -p {dir} -c {dir}/config", NGINX)
add("lighttpd", DEBIAN, "lighttpd /usr/sbin/lighttpd", "lighttpd -D -f {dir}/config", LIGHTTPD)
FILES = ("apache-event", "nginx", "lighttpd")


def install(name, root):
    """Installs a server below `root`, or finds it. Returns why it cannot be used, or None."""
    source, needs, _, _ = SERVERS[name]
    if source == DEBIAN:
        return None if os.path.exists(needs[1]) else f"install {needs[0]} to include it"
    if source == PIP:
        if not os.path.exists(f"{root}/venv/bin/pip"):
            venv.create(f"{root}/venv", with_pip=True)
        command = [f"{root}/venv/bin/pip", "install", "-q", "--disable-pip-version-check", *needs]
    elif source == NPM:
        if not shutil.which("npm"):
            return "install npm to include it"
        os.makedirs(f"{root}/npm/node_modules", exist_ok=True)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", f"{root}/npm", *needs]
    else:
        return None
    done = subprocess.run(command, capture_output=True, text=True)
    said = (done.stderr.strip() or done.stdout.strip() or "?").splitlines()[-1]
    return None if done.returncode == 0 else f"not installable: {said[:120]}"


def start(name, root, port, where, log):
    """Starts a server in the folder `where`."""
    source, _, command, config = SERVERS[name]
    words = {"port": port, "dir": where, "here": HERE, "www": f"{root}/www"}
    if config:
        with open(f"{where}/config", "w") as file:
            file.write(config.format(**words))
    path = [f"{root}/venv/bin", f"{root}/npm/node_modules/.bin", "/usr/sbin", os.environ["PATH"]]
    env = dict(os.environ, PATH=":".join(path), ORIGINS_LOG=log, PYTHONPATH=HERE, ORIGINS_NPM=f"{root}/npm",
               PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
    command = [word.format(**words) for word in command]
    if command[0] == "python":
        command[0] = f"{root}/venv/bin/python" if source == PIP else sys.executable
    output = open(f"{where}/output", "a")
    return subprocess.Popen(command, env=env, cwd=where, stdin=subprocess.DEVNULL, stdout=output,
                            stderr=output, start_new_session=True)
