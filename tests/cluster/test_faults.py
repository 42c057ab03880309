"""Random faults on three nodes and three nats-servers: nothing that was acknowledged is missing anywhere, and nothing is twice.

``ROUNDS`` sets their number, ``SEED`` repeats a run (``make cluster-faults``).
"""
import os
import random
import shutil
import signal
import time

from procs import eventually

#: Rounds between two waits for everything to be everywhere.
CHECK_EVERY = 10
#: Longest fault, in seconds.
LONGEST = 1.5


class Faults:
    """The faults of one run. Each is made, lasts a moment, and is over at its end."""

    def __init__(self, site, chance):
        self.site, self.chance = site, chance
        self.backups = {}
        self.all = [
            (4, self.kill_node), (3, self.kill_server), (3, self.kill_leader), (1, self.kill_all_servers), (3, self.cut), (3, self.hang), (2, self.slow),
            (2, self.freeze_node), (2, self.freeze_server), (2, self.back_up), (2, self.put_backup_back), (1, self.fill_disk), (1, self.stop_node),
        ]
        self.made = {}

    def make(self):
        weights, faults = zip(*self.all)
        fault = self.chance.choices(faults, weights)[0]
        what = fault() or "nothing"
        self.made[fault.__name__] = self.made.get(fault.__name__, 0) + 1
        return f"{fault.__name__} {what}"

    def last(self):
        time.sleep(self.chance.uniform(0, LONGEST))

    def node(self):
        return self.chance.choice(self.site.nodes)

    def kill_node(self):
        node = self.node()
        node.kill()
        self.last()
        if self.chance.random() < 0.3:
            # Also while it starts.
            node.start(wait=False)
            time.sleep(self.chance.uniform(0, 0.3))
            node.kill()
        node.start()
        return node.name

    def stop_node(self):
        node = self.node()
        node.stop()
        self.last()
        node.start()
        return node.name

    def freeze_node(self):
        node = self.node()
        node.freeze()
        self.last()
        node.thaw()
        return node.name

    def kill(self, *servers):
        for server in servers:
            server.kill()
        self.last()
        for server in servers:
            server.start()
        for server in servers:
            eventually(f"{server.name} answers", server.answers)
        return ", ".join(server.name for server in servers)

    def kill_server(self):
        return self.kill(self.chance.choice(self.site.servers.all))

    def kill_leader(self):
        leader = self.site.servers.leader("saltcellar")
        return leader and self.kill(leader)

    def kill_all_servers(self):
        return self.kill(*self.site.servers.all)

    def freeze_server(self):
        server = self.chance.choice(self.site.servers.all)
        server.signal(signal.SIGSTOP)
        self.last()
        server.signal(signal.SIGCONT)
        return server.name

    def links(self):
        """Some links of one node, or of all."""
        names = self.chance.choice([[node.name] for node in self.site.nodes] + [[node.name for node in self.site.nodes]])
        links = [link for name in names for link in self.site.links[name]]
        return names, self.chance.sample(links, self.chance.randint(1, len(links)))

    def on_links(self, act):
        names, links = self.links()
        for link in links:
            act(link)
        self.last()
        for link in links:
            link.heal()
        return f"{len(links)} of {', '.join(names)}"

    def cut(self):
        return self.on_links(lambda link: link.cut())

    def hang(self):
        return self.on_links(lambda link: link.hang())

    def slow(self):
        rate = self.chance.choice([500, 5_000, 50_000])
        return self.on_links(lambda link: link.slow(rate))

    def back_up(self):
        node = self.node()
        old = self.backups.pop(node.name, None)
        if old:
            shutil.rmtree(old)
        self.backups[node.name] = self.site.place / f"backup-{node.name}"
        node.backup(self.backups[node.name])
        return node.name

    def put_backup_back(self):
        """What the log had is on the stream before: nobody has what was only there."""
        if not self.backups:
            return None
        name = self.chance.choice(sorted(self.backups))
        node = next(one for one in self.site.nodes if one.name == name)
        writer = next(one for one in self.site.writers if one.node is node)
        history = self.site.history
        writer.hold()
        eventually(f"the entries of {name} everywhere", lambda: len({len(set(history.of(one, writer))) for one in self.site.nodes}) == 1)
        history.keep(node)
        node.kill()
        node.restore(self.backups[name])
        history.forget(node)
        node.start()
        writer.resume()
        return name

    def fill_disk(self):
        """The limit of free space, so that other nodes on this disk go on."""
        node = self.node()
        everything = shutil.disk_usage(node.place).total
        usual = node.others
        node.kill()
        node.others = {"store": {"free_bytes_min": everything, "free_bytes_low": 1}}
        node.start()
        self.last()
        node.kill()
        node.others = usual
        node.start()
        return node.name


def test_random_faults_lose_nothing_and_double_nothing(site):
    rounds, seed = int(os.environ.get("ROUNDS") or 3), os.environ.get("SEED") or "1"
    print(f"\n{rounds} rounds, SEED={seed}")
    site = site(servers=3, links=True).start()
    site.write(pause=0.05)
    site.stored()
    faults = Faults(site, random.Random(seed))
    for number in range(1, rounds + 1):
        began = time.monotonic()
        made = faults.make()
        print(f"{number:4} {made}, {time.monotonic() - began:.1f} s, {[len(writer.jids) for writer in site.writers]} jobs", flush=True)
        time.sleep(faults.chance.uniform(0, 0.5))
        if number % CHECK_EVERY == 0:
            for writer in site.writers:
                writer.hold()
            site.history.is_complete()
            for writer in site.writers:
                writer.resume()
    site.stored()
    began = time.monotonic()
    site.is_complete()
    acked = sum(len(writer.acked) for writer in site.writers)
    print(f"{acked} acknowledged calls are on each node once; complete {time.monotonic() - began:.1f} s after the last fault; faults: {faults.made}")
