"""agent-sandbox's Python client, with an operator, an API server and a server that runs sandboxes."""
import io
import os
import time
import unittest
import urllib.request

import yaml
from kubernetes import client, config, watch
from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

GROUP, EXT, VERSION = "agents.x-k8s.io", "extensions.agents.x-k8s.io", "v1beta1"
PATIENCE = 600  # seconds: the template may have to be built

# A server that answers the head of each request: the template has no Python.
SERVER = """$s = IO::Socket::INET->new(LocalPort => 8888, Listen => 9, ReuseAddr => 1) or die;
while ($c = $s->accept) { $h = ""; while (<$c>) { last if /^\\r?$/; $h .= $_ } print $c
"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\nserved by $h" ; close $c }"""


def account(name, rules):
    """The token of a new service account with these rights."""
    core, rights = client.CoreV1Api(), client.RbacAuthorizationV1Api()
    core.create_namespaced_service_account("default", {"metadata": {"name": name}})
    rights.create_namespaced_role("default", {"metadata": {"name": name}, "rules": rules})
    rights.create_namespaced_role_binding("default", {
        "metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]})
    return core.create_namespaced_service_account_token(name, "default", {"spec": {}}).status.token


def template(name, image="registry.example/base", **container):
    return {"apiVersion": f"{EXT}/{VERSION}", "kind": "SandboxTemplate", "metadata": {"name": name},
            "spec": {"envVarsInjectionPolicy": "Allowed", "podTemplate": {"spec": {"containers": [
                {"name": "main", "image": image, **container}]}}}}


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        config.load_kube_config()
        cls.api = client.CustomObjectsApi()
        cls.token = account("user", [{"apiGroups": [GROUP], "resources": ["sandboxes"], "verbs": ["get"]},
                                     {"apiGroups": [EXT], "resources": ["sandboxclaims"], "verbs": ["create"]}])
        for t in (template("python"), template("warm", resources={"limits": {"memory": "512Mi"}}), template("served", command=["perl", "-MIO::Socket::INET", "-e", SERVER]),
                  template("hostile", securityContext={"privileged": True})):
            cls.api.create_namespaced_custom_object(EXT, VERSION, "default", "sandboxtemplates", t)
            name = t["metadata"]["name"]
            cls.api.create_namespaced_custom_object(EXT, VERSION, "default", "sandboxwarmpools", {
                "apiVersion": f"{EXT}/{VERSION}", "kind": "SandboxWarmPool", "metadata": {"name": name},
                "spec": {"replicas": 0, "sandboxTemplateRef": {"name": name}}})
        cls.clients = SandboxClient(SandboxDirectConnectionConfig(api_url=os.environ["TURN_TEST_ROUTER"]))

    def create(self, pool="python", **more):
        s = self.clients.create_sandbox(pool, sandbox_ready_timeout=PATIENCE, **more)
        self.addCleanup(s.terminate)
        for session in (s.connector.session, s.connector._no_retry_session):  # docs/kubernetes-clients.md
            session.headers["Authorization"] = "Bearer " + self.token
        return s

    def test_many(self):
        """200 commands in a row are more than the server's rate allows at once, and none fails."""
        s = self.create()
        for n in range(200):
            r = s.commands.run(f"echo {n}")
            self.assertEqual((r.stdout, r.exit_code), (f"{n}\n", 0))

    def test_callers(self):
        """Only who may get a sandbox and create some is answered, and no sandbox sees the token."""
        s = self.create("served")
        headers = s.connector.session.headers
        for token, status in ((account("reader", [{"apiGroups": [GROUP], "resources": ["sandboxes"], "verbs": ["get"]}]), 403),
                              (account("nobody", []), 403), ("nonsense", 401), (None, 401)):
            headers["Authorization"] = f"Bearer {token}" if token else None
            with self.assertRaises(Exception) as failed:
                s.connector.send_request("GET", "")
            self.assertIn(str(status), f"{failed.exception} {failed.exception.__cause__}")
        headers["Authorization"] = "Bearer " + self.token
        for _ in range(PATIENCE):  # the server in the sandbox needs a moment
            r = s.connector.send_request("GET", "", headers={"X-Mine": "kept"})
            if r.text.startswith("served by"):
                break
            time.sleep(1)
        self.assertIn("X-Mine: kept", r.text)
        self.assertNotIn("uthorization", r.text)

    def test_commands(self):
        s = self.create(env={"COLOUR": "blue"})
        r = s.commands.run("echo 'Hello from Agent Sandbox!'; echo $COLOUR >&2; exit 3")
        self.assertEqual((r.stdout, r.stderr, r.exit_code), ("Hello from Agent Sandbox!\n", "blue\n", 3))
        r = s.commands.run("sleep 600", timeout=PATIENCE, command_timeout=0.5)
        self.assertTrue(r.timed_out)
        self.assertEqual(s.status()[0], "SandboxReady")

    def test_files(self):
        s = self.create()
        s.files.write("hello.sh", 'echo "Hello, World!"\n')
        self.assertEqual(s.commands.run("sh hello.sh").stdout, "Hello, World!\n")
        s.files.write("a/b.bin", io.BytesIO(bytes(range(256)) * 4096))
        self.assertEqual(s.files.read("a/b.bin"), bytes(range(256)) * 4096)
        self.assertEqual([(e.name, e.size, e.type) for e in s.files.list("a")], [("b.bin", 1 << 20, "file")])
        self.assertTrue(s.files.exists("a/b.bin"))
        self.assertFalse(s.files.exists("missing"))
        with self.assertRaises(Exception):
            s.files.read("missing")

    def test_example(self):
        """The objects of the documentation, with its calls."""
        with open(os.path.join(os.path.dirname(__file__), "pool.yaml"), encoding="utf-8") as f:
            for o in yaml.safe_load_all(f):
                kind = {"SandboxTemplate": "sandboxtemplates", "SandboxWarmPool": "sandboxwarmpools"}[o["kind"]]
                self.api.create_namespaced_custom_object(EXT, VERSION, "default", kind, o)
        s = self.create("base")
        self.assertEqual(s.commands.run("echo hello").stdout, "hello\n")
        s.files.write("data.txt", "text")
        self.assertEqual(s.files.read("data.txt"), b"text")
        self.scale("base", 0)

    def test_port(self):
        s = self.create("served")
        for _ in range(PATIENCE):  # the server in the sandbox needs a moment
            r = s.connector.send_request("GET", "")
            if r.text.startswith("served by"):
                return
            time.sleep(1)
        self.fail(r.text)

    def test_pool(self):
        """replicas of a pool wait, kubectl scale changes them, and a claim takes one."""
        self.scale("warm", 2)
        self.waits("warm", 2)
        before = self.warm_claims()
        self.create("warm").commands.run("true")
        self.assertEqual(self.warm_claims(), before + 1)
        self.waits("warm", 2)
        self.scale("warm", 0)
        self.waits("warm", 0)

    def scale(self, pool, replicas):
        self.api.patch_namespaced_custom_object_scale(EXT, VERSION, "default", "sandboxwarmpools", pool,
                                                      {"spec": {"replicas": replicas}})

    def waits(self, pool, count):
        for _ in range(PATIENCE * 10):
            p = self.api.get_namespaced_custom_object(EXT, VERSION, "default", "sandboxwarmpools", pool)
            s = p.get("status", {})
            if (s.get("replicas", 0), s.get("readyReplicas", 0)) == (count, count):
                return
            time.sleep(0.1)
        self.fail(p)

    def warm_claims(self):
        """The server's count of claims that got a sandbox that waited."""
        with urllib.request.urlopen(os.environ["TURN_TEST_METRICS"]) as page:
            for line in page.read().decode().splitlines():
                if line.startswith("turnstone_pool_claims_total{") and '"warm"' in line:
                    return float(line.split()[-1])
        self.fail("the count is not on the page")

    def test_suspend(self):
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Sandbox", "metadata": {"name": "hello-world"},
                "spec": {"podTemplate": {"spec": {"containers": [{
                    "name": "my-container", "image": "turnstone.dev/template/base",
                    "command": ["sh", "-c", "while :; do sleep 1; done"]}]}}}}
        self.api.create_namespaced_custom_object(GROUP, VERSION, "default", "sandboxes", body)
        self.wait("hello-world", "Ready", "True")
        self.patch("hello-world", "Suspended")
        self.wait("hello-world", "Suspended", "True")
        self.patch("hello-world", "Running")
        self.wait("hello-world", "Ready", "True")
        self.api.delete_namespaced_custom_object(GROUP, VERSION, "default", "sandboxes", "hello-world")
        for _ in range(PATIENCE * 10):
            all = self.api.list_namespaced_custom_object(GROUP, VERSION, "default", "sandboxes")["items"]
            if not any(s["metadata"]["name"] == "hello-world" for s in all):
                return
            time.sleep(0.1)
        self.fail("the object is still there")

    def test_refused(self):
        with self.assertRaisesRegex(Exception, "privileged"):
            self.create("hostile")
        with self.assertRaisesRegex(Exception, "does not exist"):
            self.create("no-such-pool")

    def patch(self, name, mode):
        self.api.patch_namespaced_custom_object(GROUP, VERSION, "default", "sandboxes", name,
                                                {"spec": {"operatingMode": mode}})

    def wait(self, name, kind, status):
        """As kubectl wait --for=condition=KIND=STATUS does."""
        w = watch.Watch()
        for e in w.stream(self.api.list_namespaced_custom_object, GROUP, VERSION, "default", "sandboxes",
                          field_selector=f"metadata.name={name}", timeout_seconds=PATIENCE):
            for c in (e["object"].get("status") or {}).get("conditions", []):
                if c["type"] == kind and c["status"] == status:
                    w.stop()
                    return
        self.fail(f"{name} does not become {kind}={status}")


if __name__ == "__main__":
    unittest.main()
