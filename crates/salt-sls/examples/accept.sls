{# A reaction: a minion's key was accepted. #}
{% if data.get('act', 'accept') == 'accept' %}
refresh_pool_{{ data.id }}:
  local.state.apply:
    - tgt: 'haproxy*'
    - args:
      - mods: haproxy.refresh_pool
      - pillar:
          new_minion: {{ data.id }}
{% endif %}
