saltcellar:
  # A package that the minion can fetch: salt://, http:// or a path. Without it, the package `saltcellar` of the system's repositories.
  package: salt://saltcellar/saltcellar.deb
  # Import the jobs of Salt's own job cache when it is set up.
  import: true
  # Flags of `saltcellar setup`.
  setup: []
  # Settings of the daemon, as in saltcellar.yaml, except for `bus`, which `setup` writes.
  config:
    http: {listen: "127.0.0.1:4581"}
    store:
      classes:
        - {name: jobs, keep: {age: 365d or salt}}
