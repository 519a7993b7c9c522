"""The status page at `/`: what on-call people look at first, made on the server from the last snapshot.

`headline`, `cells`, `rows` and `records` are pure: snapshot in, words out. `document`, `fleet`, `table`,
`record_list`, `chart` and `form` make markup of the words with htpy, which escapes all from outside.
In the browser htmx asks for the page anew and changes only what differs, so that focus, scroll and what is
unfolded stay; `page.js` does the little that is left.
"""
