<?php // The application for PHP.
[$path, $query] = explode('?', $_SERVER['REQUEST_URI'], 2) + [1 => ''];
parse_str($query, $asked);
$own = $asked['n'] ?? '-';
$log = getenv('ORIGINS_LOG') ?: '/dev/null';
file_put_contents($log, "{$_SERVER['REQUEST_METHOD']} $path $own\n", FILE_APPEND);
if ($path === '/boom') throw new Exception('boom');
header("X-N: $own");
header('Content-Type: text/plain');
if ($path === '/close') header('Connection: close');
if (isset($asked['ms'])) usleep($asked['ms'] * 1000);
$status = ['/204' => 204, '/304' => 304][$path] ?? 200;
http_response_code($status);
$body = ['/page' => "page\n", '/big' => str_pad($own, 300000, 'x')][$path] ?? $own;
if ($path === '/echo') $body = file_get_contents('php://input');
if ($status === 200) { header('Content-Length: ' . strlen($body)); echo $body; }
