{#- Installs saltcellar on a Salt master, configures it, and makes it the master's job cache.
    docs/DEPLOY.md explains the pillar. Apply it with `salt-call` on the master: `setup` restarts the master. #}
{%- set settings = salt['pillar.get']('saltcellar', {}) %}
{%- set setup = settings.get('setup', []) | join(' ') %}

saltcellar package:
  pkg.installed:
{%- if settings.get('package') %}
    - sources:
      - saltcellar: {{ settings['package'] }}
{%- else %}
    - name: saltcellar
{%- endif %}

{#- `setup` writes conf.d/setup.yaml, and the package owns saltcellar.yaml. This file is the formula's. The daemon would not start with
    an invalid one, so such a file is not written. #}
saltcellar configuration:
  file.managed:
    - name: /etc/saltcellar/conf.d/formula.yaml
    - contents: {{ settings.get('config', {}) | yaml(False) | json }}
    - user: root
    - group: root
    - mode: '0600'
    - makedirs: true
    - tmp_ext: .yaml
    - check_cmd: saltcellar config check --config
    - require:
      - pkg: saltcellar package

{#- An import is not part of the check: jobs that were imported once need no second run. #}
saltcellar setup:
  cmd.run:
    - name: saltcellar setup --yes {{ setup }}{{ ' --import' if settings.get('import') else '' }}
    - unless: saltcellar setup --check {{ setup }}
    - require:
      - file: saltcellar configuration

saltcellar service:
  service.running:
    - name: saltcellar
    - enable: true
    - watch:
      - file: saltcellar configuration
    - require:
      - cmd: saltcellar setup
